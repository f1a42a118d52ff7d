//! What may be typed: the subcommands and their options, and which module each belongs to. Options are only read here;
//! what they must satisfy is checked where they become a configuration (`dev::Config`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(name = "understudy", bin_name = bin_name(), version, about = "Understudy: a hot-standby AMQP broker")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cluster of broker processes on this machine, on loopback, user and password guest
    Dev(DevOptions),
    /// Show who is primary, who is in sync and how far each replica is
    Status(StatusOptions),
    /// Hand the primary's role to another replica, in good order: one disconnect for each client, nothing lost
    Switchover(SwitchoverOptions),
    /// Make a replica primary that may lack confirmed messages: the last resort, when no other is left
    Force(ForceOptions),
    /// Virtual hosts
    Vhost(VhostOptions),
    /// Users, and their passwords and tags
    User(UserOptions),
    /// What users may do where
    Permission(PermissionOptions),
    /// Limits of virtual hosts and of users
    Limit(LimitOptions),
    /// What queues and exchanges get by their names: limits, times to live, where dead letters go
    Policy(PolicyOptions),
    /// Everything of that, and exchanges, queues and bindings, in the format of RabbitMQ's definitions
    Definitions(DefinitionsOptions),
    /// Kill the primary again and again under load, or with --chaos stop and kill any broker, and count what was lost
    Demo(DemoOptions),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DevOptions {
    /// How many brokers, 1 to 9
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) replicas: u8,
    /// Where data, certificates and logs go; kept, and started again on. Without it: a temporary directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The first broker's AMQP port; the others take the ports after it. 0: any free ones
    #[arg(long, value_name = "P", default_value_t = 5672)]
    pub(crate) amqp_port: u16,
    /// AMQP over TLS too, with certificates made for it in the directory; the first broker's port for it, as --amqp-port
    #[arg(long, value_name = "P", num_args = 0..=1, require_equals = true, default_missing_value = "5771")]
    pub(crate) tls: Option<u16>,
    /// Below this many replicas in sync nothing is confirmed; default 2, or 1 with a single replica
    #[arg(long, value_name = "M")]
    pub(crate) min_in_sync: Option<u8>,
    /// What a confirm waits for on each replica in sync
    #[arg(long, value_enum, default_value_t = Durability::Fsync)]
    pub(crate) durability: Durability,
    /// One JSON object a line on standard output; everything else goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// The broker's executable; default: `understudy-broker` beside this one, then on PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) broker_bin: Option<PathBuf>,
    /// An argument for each broker, such as --broker-arg=--max-message-size=1048576; may be given several times
    #[arg(long = "broker-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) broker_arguments: Vec<String>,
    /// Show the brokers' logs on standard error too
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// On disk
    Fsync,
    /// In memory
    Replicated,
}

impl Durability {
    /// As the broker's `--durability` takes it.
    pub(crate) fn as_argument(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Replicated => "replicated",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// The BrokerCluster's name
    #[arg(value_name = "NAME", required_unless_present = "dir", conflicts_with = "dir")]
    pub(crate) name: Option<String>,
    /// The namespace; default: the current context's
    #[arg(long, short, value_name = "NS", conflicts_with = "dir")]
    pub(crate) namespace: Option<String>,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// One JSON document instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Look again and again, until interrupted, with a bar for each replica that catches up
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SwitchoverOptions {
    /// The BrokerCluster, and the pod that is to be primary; with --dir the replica only. Without it: the furthest backup
    #[arg(value_name = "NAME] [TO", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    /// The namespace; default: the current context's
    #[arg(long, short, value_name = "NS", conflicts_with = "dir")]
    pub(crate) namespace: Option<String>,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR")]
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
    /// The namespace; default: the current context's
    #[arg(long, short, value_name = "NS", conflicts_with = "dir")]
    pub(crate) namespace: Option<String>,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Take the loss without being asked
    #[arg(long)]
    pub(crate) yes: bool,
    /// One JSON document instead of a sentence
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// How many times the primary is killed
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "chaos")]
    pub(crate) kills: u32,
    /// Instead: SIGKILL, or SIGSTOP and some time later SIGCONT, to random brokers at random times, overlapping
    #[arg(long)]
    pub(crate) chaos: bool,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10.0, requires = "chaos")]
    pub(crate) minutes: f64,
    /// What is done, to whom and when; the same seed, the same. Without it: by the clock
    #[arg(long, value_name = "N", requires = "chaos")]
    pub(crate) seed: Option<u64>,
    /// How many brokers, 2 to 9
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) replicas: u8,
    /// Least time between two kills, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, conflicts_with = "chaos")]
    pub(crate) interval_ms: u64,
    /// Messages a second the publisher aims at; default 2000, with --chaos 10000
    #[arg(long, value_name = "RATE", default_value_t = 2000, default_value_if("chaos", "true", "10000"))]
    pub(crate) rate: u32,
    /// Keep data and logs there instead of in a temporary directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// What a confirm waits for on each replica in sync
    #[arg(long, value_enum, default_value_t = Durability::Fsync)]
    pub(crate) durability: Durability,
    /// One JSON document on standard output instead of the closing table
    #[arg(long)]
    pub(crate) json: bool,
    /// The broker's executable; default: `understudy-broker` beside this one, then on PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) broker_bin: Option<PathBuf>,
    /// Show the brokers' logs on standard error too
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// Which cluster.
#[derive(Debug, Args)]
pub(crate) struct PlaceOptions {
    /// A BrokerCluster's name
    #[arg(long, short, value_name = "NAME", required_unless_present = "dir", conflicts_with = "dir")]
    pub(crate) cluster: Option<String>,
    /// The namespace; default: the current context's
    #[arg(long, short, value_name = "NS", conflicts_with = "dir")]
    pub(crate) namespace: Option<String>,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct VhostOptions {
    #[command(subcommand)]
    pub(crate) command: VhostCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VhostCommand {
    /// Make one, with the exchanges that each has; nothing happens if it is there
    Add {
        name: String,
        /// For people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// May be given several times
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Delete one, with its queues and their messages, its exchanges and bindings; its connections are closed
    Delete {
        name: String,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UserOptions {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Make one; it may do nothing before a permission says what
    Add {
        name: String,
        /// Without it: a line of standard input
        password: Option<String>,
        /// Such as administrator; may be given several times
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Delete one; its connections are closed
    Delete {
        name: String,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Give one another password; who is logged in stays
    Password {
        name: String,
        /// Without it: a line of standard input
        password: Option<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Give one these tags, and no other
    Tags {
        name: String,
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them; those of the brokers' file of users are not among them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PermissionOptions {
    #[command(subcommand)]
    pub(crate) command: PermissionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PermissionCommand {
    /// Let a user do in a virtual host what these patterns match, and nothing else; it holds at once
    Set {
        user: String,
        /// Of names that it may configure, write to and read from; with --topic of routing keys that it may write and read
        #[arg(value_name = "PATTERN", required = true)]
        patterns: Vec<String>,
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        /// Of an exchange of type topic; {username} and {vhost} stand for the names
        #[arg(long, value_name = "EXCHANGE")]
        topic: Option<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Take a user out of a virtual host; with --topic or --all-topics free its routing keys
    Clear {
        user: String,
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        #[arg(long, value_name = "EXCHANGE")]
        topic: Option<String>,
        /// Of all exchanges
        #[arg(long, conflicts_with = "topic")]
        all_topics: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// Of this user only
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// In this virtual host only
        #[arg(long, value_name = "VHOST")]
        vhost: Option<String>,
        /// Those on routing keys instead
        #[arg(long)]
        topics: bool,
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LimitOptions {
    #[command(subcommand)]
    pub(crate) command: LimitCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Set one; what is beyond it already stays
    Set {
        name: LimitName,
        value: u64,
        #[command(flatten)]
        of: LimitOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Lift one
    Clear {
        name: LimitName,
        #[command(flatten)]
        of: LimitOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LimitName {
    /// Of a virtual host or a user
    #[value(name = "max-connections")]
    Connections,
    /// Of a virtual host
    #[value(name = "max-queues")]
    Queues,
    /// Of a user
    #[value(name = "max-channels")]
    Channels,
}

impl std::fmt::Display for LimitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connections => "max-connections",
            Self::Queues => "max-queues",
            Self::Channels => "max-channels",
        })
    }
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LimitOf {
    #[arg(long, value_name = "VHOST")]
    pub(crate) vhost: Option<String>,
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

impl LimitOf {
    pub(crate) fn describe(&self) -> String {
        match (&self.vhost, &self.user) {
            (Some(vhost), _) => format!("virtual host '{vhost}'"),
            (None, user) => format!("user '{}'", user.as_deref().unwrap_or_default()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PolicyOptions {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Make one, or another one of its name; it holds at once, for what is there too
    Set {
        name: String,
        /// A regular expression on names
        pattern: String,
        /// JSON, such as {"max-length": 1000, "dead-letter-exchange": "dead"}
        definition: String,
        /// Of those that match a name only that with the highest counts
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        priority: i64,
        /// queues, classic_queues, quorum_queues, exchanges or all
        #[arg(long, value_name = "WHAT", default_value = "all")]
        apply_to: String,
        #[command(flatten)]
        of: PolicyOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Take one away; what it set holds no more
    Clear {
        name: String,
        #[command(flatten)]
        of: PolicyOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them, the first to count first
    List {
        /// In this virtual host only
        #[arg(long, value_name = "VHOST")]
        vhost: Option<String>,
        /// Those of operators instead
        #[arg(long)]
        operator: bool,
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PolicyOf {
    #[arg(long, value_name = "VHOST", default_value = "/")]
    pub(crate) vhost: String,
    /// One of operators, which bounds what the others may set
    #[arg(long)]
    pub(crate) operator: bool,
}

impl PolicyOf {
    pub(crate) fn describe(&self, name: &str) -> String {
        let kind = if self.operator { "operator policy" } else { "policy" };
        format!("{kind} '{name}' in virtual host '{}'", self.vhost)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DefinitionsOptions {
    #[command(subcommand)]
    pub(crate) command: DefinitionsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DefinitionsCommand {
    /// Write them down
    Export {
        /// Without it: standard output
        file: Option<PathBuf>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Make what stands there, and say what differs and what is not taken; a second time changes nothing
    Import {
        file: PathBuf,
        /// Of entries that do not say, in a file of one virtual host
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        /// The report as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

impl Arguments {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .init();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match self.command {
            Command::Dev(options) => runtime.block_on(crate::dev::run(options)),
            Command::Status(options) => runtime.block_on(crate::status::run(options)),
            Command::Switchover(options) => runtime.block_on(crate::switchover::switchover(options)),
            Command::Force(options) => runtime.block_on(crate::switchover::force(options)),
            Command::Vhost(options) => runtime.block_on(crate::admin::vhost(options)),
            Command::User(options) => runtime.block_on(crate::admin::user(options)),
            Command::Permission(options) => runtime.block_on(crate::admin::permission(options)),
            Command::Limit(options) => runtime.block_on(crate::admin::limit(options)),
            Command::Policy(options) => runtime.block_on(crate::admin::policy(options)),
            Command::Definitions(options) => runtime.block_on(crate::admin::definitions(options)),
            Command::Demo(options) => runtime.block_on(crate::demo::run(options)),
        }
    }
}

/// kubectl runs plugins under their file's name: then usage lines say `kubectl understudy`.
fn bin_name() -> &'static str {
    let called_as = std::env::args_os().next().map(PathBuf::from);
    match called_as.as_deref().and_then(|path| path.file_stem()) {
        Some(stem) if stem == "kubectl-understudy" => "kubectl understudy",
        _ => "understudy",
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn status_wants_a_name_or_a_directory_and_not_both() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy status").is_err());
        assert!(parse("understudy status orders --dir x").is_err());
        assert!(parse("understudy status -n shop orders").is_ok());
        assert!(parse("understudy status --dir x --json").is_ok());
    }

    #[test]
    fn administration_wants_to_know_where_and_limits_of_what() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy vhost add shop").is_err());
        assert!(parse("understudy vhost add shop --dir x --cluster y").is_err());
        assert!(parse("understudy vhost add shop --dir x --description A --tag a --tag b").is_ok());
        assert!(parse("understudy user tags anna administrator monitoring -c orders -n shop").is_ok());
        assert!(parse("understudy permission set anna ^a .* .* --vhost shop --dir x").is_ok());
        assert!(parse("understudy permission set anna ^a .* --topic amq.topic --dir x").is_ok());
        assert!(parse("understudy permission set anna --dir x").is_err());
        assert!(parse("understudy limit set max-queues 3 --vhost shop --dir x").is_ok());
        assert!(parse("understudy limit set max-queues 3 --vhost shop --user anna --dir x").is_err());
        assert!(parse("understudy limit set max-queues 3 --dir x").is_err());
        assert!(parse("understudy definitions import file --dir x").is_ok());
        assert!(parse("understudy policy set p ^a {} --dir x").is_ok());
        assert!(parse("understudy policy set p ^a {} --priority -1 --apply-to queues --operator --dir x").is_ok());
        assert!(parse("understudy policy set p ^a --dir x").is_err());
        assert!(parse("understudy policy clear p --operator --vhost shop -c orders").is_ok());
    }

    #[test]
    fn chaos_has_its_own_measure_and_pace() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        let demo = |line: &str| match parse(line).unwrap().command {
            Command::Demo(options) => options,
            other => panic!("{other:?}"),
        };
        assert!(parse("understudy demo --minutes 1").is_err());
        assert!(parse("understudy demo --chaos --kills 3").is_err());
        assert_eq!(demo("understudy demo").rate, 2000);
        assert_eq!(demo("understudy demo --chaos --minutes 0.5").rate, 10_000);
        assert_eq!(demo("understudy demo --chaos --rate 7").rate, 7);
    }

    #[test]
    fn a_switchover_takes_a_loss_only_where_it_is_forced() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy switchover --dir x dev-1").is_ok());
        assert!(parse("understudy switchover -n shop orders orders-1").is_ok());
        assert!(parse("understudy switchover orders orders-1 orders-2").is_err());
        assert!(parse("understudy switchover --dir x dev-1 --yes").is_err());
        assert!(parse("understudy switchover --dir x dev-1 --force --yes").is_ok());
        assert!(parse("understudy force --dir x").is_err());
        assert!(parse("understudy force --dir x dev-1 --yes").is_ok());
    }
}
