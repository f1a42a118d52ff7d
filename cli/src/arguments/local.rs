//! What `understudy dev` and `understudy demo` may be told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
