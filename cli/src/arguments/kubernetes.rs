//! What may be said of a cluster that runs, above all of one in Kubernetes, and how its API server is reached.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

/// As kubectl has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct ReachOptions {
    /// The namespace; default: the context's
    #[arg(long, short, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// The kubeconfig's context; default: its current one
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The kubeconfig; default: as kubectl finds it
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME", conflicts_with = "dir")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR", conflicts_with = "ReachOptions")]
    pub(crate) dir: Option<PathBuf>,
    /// What is printed
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
    /// The last ten changes of primary too, with what each part of them took
    #[arg(long)]
    pub(crate) failovers: bool,
    /// Look again and again, until interrupted
    #[arg(long, short, conflicts_with_all = ["json", "output"])]
    pub(crate) watch: bool,
}

impl StatusOptions {
    pub(crate) fn as_json(&self) -> bool {
        self.json || self.output == Output::Json
    }
}

#[derive(Debug, Args)]
pub(crate) struct SwitchoverOptions {
    /// The BrokerCluster, and the pod that is to be primary; with --dir the replica only. Without a pod: the furthest backup;
    /// without a cluster: the only one of the namespace
    #[arg(value_name = "NAME] [TO", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    /// The pod or replica that is to be primary
    #[arg(long, value_name = "POD")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR", conflicts_with = "ReachOptions")]
    pub(crate) dir: Option<PathBuf>,
    /// Even if it is not in sync: what it lacks is lost
    #[arg(long)]
    pub(crate) force: bool,
    /// Take the loss without being asked
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
    /// One JSON document instead of a sentence
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForceOptions {
    /// The BrokerCluster, and the pod that is to be primary; with --dir the replica only
    #[arg(value_name = "NAME] [TO", num_args = 1..=2, required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR", conflicts_with = "ReachOptions")]
    pub(crate) dir: Option<PathBuf>,
    /// Take the loss without being asked
    #[arg(long)]
    pub(crate) yes: bool,
    /// One JSON document instead of a sentence
    #[arg(long)]
    pub(crate) json: bool,
}

/// How an order is given.
#[derive(Clone, Debug, Args)]
pub(crate) struct OrderOptions {
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
    /// Wait until the status shows that it is so; --wait=false does not
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// Seconds to wait at most
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// Say what would be done, and let the API server check it, without doing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FenceOptions {
    /// Pods of one cluster, such as orders-1
    #[arg(value_name = "POD", required = true)]
    pub(crate) pods: Vec<String>,
    /// Also where confirms stop by it
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderOptions,
}

#[derive(Debug, Args)]
pub(crate) struct UnfenceOptions {
    /// Pods of one cluster, such as orders-1
    #[arg(value_name = "POD", required = true)]
    pub(crate) pods: Vec<String>,
    #[command(flatten)]
    pub(crate) order: OrderOptions,
}

#[derive(Debug, Args)]
pub(crate) struct HibernateOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Without being asked
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) order: OrderOptions,
}

#[derive(Debug, Args)]
pub(crate) struct NamedOrderOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) order: OrderOptions,
}

#[derive(Debug, Args)]
pub(crate) struct MaintenanceOptions {
    #[command(subcommand)]
    pub(crate) command: MaintenanceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MaintenanceCommand {
    /// Nodes are being worked at: nothing is rolled out, no role goes back to a preferred pod
    On(NamedOrderOptions),
    /// That is over
    Off(NamedOrderOptions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleChoice {
    /// The current primary
    Primary,
    /// All others
    Backup,
    All,
}

#[derive(Debug, Args)]
pub(crate) struct LogsOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Go on with what is written from now on, of whoever has the role then
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Whose
    #[arg(long, value_enum, default_value_t = RoleChoice::Primary)]
    pub(crate) role: RoleChoice,
    /// So many of the last lines of each pod; default: all, or 10 with --follow and more than one pod
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) tail: Option<i64>,
    /// With the time at which the node took each line
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Of the container that ran before the present one
    #[arg(long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where to; default: understudy-NAME-TIME.tar.gz here
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Where the operator runs
    #[arg(long, value_name = "NS", default_value = "understudy-system")]
    pub(crate) operator_namespace: String,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
}

#[derive(Debug, Args)]
pub(crate) struct PerfOptions {
    /// The BrokerCluster's name; may be left out if it is the only one in the namespace
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) publishers: u16,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) consumers: u16,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(understudy_bench::MIN_MESSAGE_BYTES as i64..=64 << 20))]
    pub(crate) size: u32,
    /// Seconds, with one of warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) duration: u64,
    /// Messages a second of each publisher; default: as many as are confirmed
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Messages of a publisher that wait for their confirm, at most
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    /// The image that has `understudy-bench`; default: the brokers'
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// The figures as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the Job, and let the API server check it, without running it
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionOptions {
    /// For which shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct CompleteOptions {
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) words: Vec<String>,
}
