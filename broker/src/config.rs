//! The command line, and the [`Config`] it must make sense as. Nothing else reads an argument or the environment.

mod clients;
mod settings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use understudy_node::{NodeConfig, Settings};
use understudy_record::{ReplicaName, Replicate};

use clients::ClientArguments;
pub(crate) use clients::{ClientCertificates, ClientTls, Clients, LoginFrom, Mechanism, TlsVersion};
pub(crate) use settings::{SettingsError, SettingsFile};

/// Of the memory limit, for bodies: the rest is for the index, buffers, and what is on its way.
const DEFAULT_BUDGET_PERCENT: u8 = 40;

/// Below it the broker's own code would take all there is.
const MIN_MEMORY_WATERMARK: u8 = 10;

/// A cluster has nine replicas at most.
const MOST_CATCH_UPS: usize = 8;

/// For each catch-up that may run, in bytes a second: the parts of it that wait for their turn are through within seconds.
const LEAST_BANDWIDTH: u64 = 1 << 20;

/// One replica of a hot-standby AMQP broker.
#[derive(Debug, Parser)]
#[command(name = "understudy-broker", version)]
#[command(after_help = "understudy-broker inspect DIR says what is in a data directory, and what of it is damaged.")]
pub struct Arguments {
    /// This replica's name: the pod's name in Kubernetes.
    #[arg(long, env = "UNDERSTUDY_NAME")]
    name: String,
    /// The cluster's name, which every replica must share.
    #[arg(long, env = "UNDERSTUDY_CLUSTER")]
    cluster: String,
    /// The log's directory; made if it is not there.
    #[arg(long, default_value = "/var/lib/understudy")]
    data_dir: PathBuf,
    #[arg(long, default_value = "0.0.0.0:7672")]
    grpc_listen: SocketAddr,
    /// Health (/livez, /readyz, /startupz) and /metrics.
    #[arg(long, default_value = "0.0.0.0:15692")]
    http_listen: SocketAddr,
    /// Every replica's gRPC address: name=host:port, separated by commas.
    #[arg(long, conflicts_with = "peer_pattern")]
    peers: Option<String>,
    /// A replica's gRPC address, with {name} for its name: {name}.orders-nodes.shop.svc:7672
    #[arg(long)]
    peer_pattern: Option<String>,
    /// How many replicas the cluster has.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Publishers get no confirms while fewer replicas than this are in sync.
    #[arg(long, default_value_t = 2)]
    min_in_sync: usize,
    /// What a confirm promises: fsynced on every in-sync replica, or received by each.
    #[arg(long, value_enum, default_value_t = Durability::Fsync)]
    durability: Durability,
    /// What may change without a restart, looked at every few seconds: lines of replicas=N, min-in-sync=N and
    /// consumer-timeout-ms=N, which count instead of the options of those names.
    #[arg(long, value_name = "FILE")]
    settings_file: Option<PathBuf>,
    /// kubernetes:NAMESPACE/NAME or local:DIRECTORY
    #[arg(long)]
    lease: String,
    #[arg(long, default_value_t = 10_000)]
    lease_duration_ms: u64,
    #[arg(long, default_value_t = 2000)]
    backup_timeout_ms: u64,
    #[arg(long, default_value_t = 10_000)]
    stall_timeout_ms: u64,
    /// Directory of ca.crt, tls.crt and tls.key, by which peers, the operator and this broker know each other.
    #[arg(long, default_value = "/etc/understudy/tls")]
    tls_dir: PathBuf,
    /// One user a line, name:hash, the hash in PHC form (argon2id). They may do everything in every virtual host; other users
    /// are made with `understudy user`.
    #[arg(long, required_unless_present = "open_guest")]
    users_file: Option<PathBuf>,
    /// guest/guest may log in, from the loopback only, and do everything, until `understudy user` or an import says otherwise.
    #[arg(long)]
    open_guest: bool,
    /// What a client that reaches a backup meets.
    #[arg(long, value_enum, default_value_t = BackupConnections::Relay)]
    backup_connections: BackupConnections,
    /// What the backups have of queues and exchanges whose declares do not say (x-understudy-replicate).
    #[arg(long, value_enum, default_value_t = ReplicateDefault::All)]
    replicate: ReplicateDefault,
    /// Largest message, in bytes.
    #[arg(long, default_value_t = 128 << 20)]
    max_message_size: u64,
    /// Bytes of message bodies that are kept in memory; the rest waits on disk. Four tenths of the memory limit if absent.
    #[arg(long, value_name = "BYTES")]
    memory_budget: Option<u64>,
    /// Bytes of memory that this process may use. The container's limit if absent, or the machine's memory.
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<u64>,
    /// Brokers that share the memory that is found, one part each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    memory_sharers: u64,
    /// Hundredths of the memory limit above which publishers must wait, until the process is 5 below.
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    memory_watermark: u8,
    /// Free bytes on the data directory's volume below which publishers must wait, until a fifth more is free; 0: never. A
    /// tenth of the volume if absent, at least 64 MiB and at most 2 GiB.
    #[arg(long, value_name = "BYTES")]
    disk_free_watermark: Option<u64>,
    /// Bytes of one file of the log: space comes back in steps of this size.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    segment_bytes: u64,
    /// Bytes of log between two checkpoints: less means a shorter restart and less disk, more means less work beside.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    checkpoint_bytes: u64,
    /// Bytes a second that checkpoints may write, messages that they move included.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    checkpoint_rate: u64,
    /// A backup that lacks more records than this, and more than twice the live messages, gets the live messages instead of
    /// the log.
    #[arg(long, default_value_t = 50_000)]
    resume_records: u64,
    /// A channel that holds a delivery for so many milliseconds without acknowledging it is closed (406), unless the queue has
    /// another consumer timeout; 0: never.
    #[arg(long, value_name = "MS", default_value_t = 30 * 60 * 1000)]
    consumer_timeout_ms: u64,
    /// Within so many milliseconds the primary writes down what all of its state is, slice by slice, and every backup compares
    /// it with its own; 0: never.
    #[arg(long, value_name = "MS", default_value_t = 600_000)]
    scrub_interval_ms: u64,
    /// Serve although this replica's state is not what its last primary had: for a cluster in which no replica's is, once
    /// somebody has decided whose counts.
    #[arg(long)]
    accept_differences: bool,
    /// Bytes a second that replicas which catch up may take from this one, all together, while it is the primary; 0: no limit.
    /// What is published meanwhile comes on top.
    #[arg(long, value_name = "BYTES_PER_SECOND", default_value_t = 0)]
    catch_up_bandwidth: u64,
    /// Replicas that may fill a new log from the primary at the same time; others wait for their turn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_catch_ups: usize,
    /// Whether the backups replace a lost primary by themselves where no operator does, or leave that to a person.
    #[arg(long, value_enum, default_value_t = Promotion::Automatic)]
    promotion: Promotion,
    /// End when the process that started this one ends.
    #[arg(long)]
    exit_with_parent: bool,
    /// In Kubernetes: the address that clients reach this replica by.
    #[arg(long, env = "POD_IP", hide = true)]
    pod_ip: Option<String>,
    /// In Kubernetes: the node that this replica runs on.
    #[arg(long, env = "NODE_NAME", hide = true)]
    node_name: Option<String>,
    /// Seed of generated names and of jitter; random if absent.
    #[arg(long, hide = true)]
    seed: Option<u64>,
    #[command(flatten)]
    clients: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    Fsync,
    Replicated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Promotion {
    Automatic,
    Manual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackupConnections {
    /// Relayed to the primary.
    Relay,
    /// Closed.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplicateDefault {
    /// All of them.
    All,
    /// That they are there; messages are the primary's alone.
    Configuration,
    /// Nothing: another primary does not have them.
    None,
}

impl From<ReplicateDefault> for Replicate {
    fn from(given: ReplicateDefault) -> Self {
        match given {
            ReplicateDefault::All => Self::All,
            ReplicateDefault::Configuration => Self::Configuration,
            ReplicateDefault::None => Self::Nothing,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub name: ReplicaName,
    pub cluster: String,
    pub data_dir: PathBuf,
    pub clients: Clients,
    pub grpc_listen: SocketAddr,
    pub http_listen: SocketAddr,
    pub peers: Peers,
    /// By the command line and, if there is one, the file beside it, as they were at the start.
    pub settings: Settings,
    pub settings_file: Option<SettingsFile>,
    pub durability: Durability,
    pub lease: LeasePlace,
    pub lease_duration: Duration,
    pub backup_timeout: Duration,
    pub stall_timeout: Duration,
    pub tls_dir: PathBuf,
    pub users: Users,
    pub backup_connections: BackupConnections,
    /// Of queues and exchanges whose declares do not say.
    pub replicate: Replicate,
    pub max_message_size: u64,
    /// Bytes of message bodies kept in memory.
    pub memory_budget: u64,
    /// Bytes of one file of the log.
    pub segment_bytes: u64,
    /// Bytes of log between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes a second that checkpoints may write.
    pub checkpoint_rate: u64,
    /// Bytes of memory that this process may use.
    pub memory_limit: u64,
    /// Hundredths of `memory_limit` above which publishers must wait.
    pub memory_watermark: u8,
    /// Free bytes on the volume below which publishers must wait; 0: never; `None`: by the volume's size.
    pub disk_free_watermark: Option<u64>,
    pub resume_records: u64,
    /// What one pass of comparing the replicas' states takes; zero: there is none.
    pub scrub_interval: Duration,
    /// A state that is not what the last primary had counts all the same.
    pub accept_differences: bool,
    /// Bytes a second for all catch-ups together; `None`: no limit.
    pub catch_up_bandwidth: Option<NonZeroU64>,
    pub max_catch_ups: usize,
    pub promotion: Promotion,
    pub exit_with_parent: bool,
    pub seed: u64,
}

/// Where a replica's gRPC port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    Listed(BTreeMap<ReplicaName, String>),
    /// `{name}` stands for the replica's name; replica names are the cluster's with `-0`, `-1`, ….
    Pattern(String),
}

impl Peers {
    /// All replicas of the cluster; `count` of them where they are not listed.
    fn replicas(&self, cluster: &str, count: usize) -> Vec<ReplicaName> {
        match self {
            Self::Listed(list) => list.keys().cloned().collect(),
            Self::Pattern(_) => (0..count).map(|place| ReplicaName::new(&format!("{cluster}-{place}"))).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasePlace {
    Kubernetes { namespace: String, name: String, pod_ip: Option<String>, node: Option<String> },
    Local(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    File(PathBuf),
    OpenGuest,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("--lease is {0:?}; give kubernetes:NAMESPACE/NAME or local:DIRECTORY")]
    Lease(String),
    #[error("--peers has {0:?}; give name=host:port, separated by commas")]
    Peer(String),
    #[error("give --peers or --peer-pattern, so that this replica finds the others")]
    NoPeers,
    #[error("--peer-pattern {0:?} has no {{name}} in it")]
    Pattern(String),
    #[error("--peers does not list this replica, {0}")]
    NotListed(ReplicaName),
    #[error("--min-in-sync is {min_in_sync}; it must be between 1 and --replicas, which is {replicas}")]
    MinInSync { min_in_sync: usize, replicas: usize },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(
        "--open-guest takes guest/guest from anyone who can connect, so clients' addresses must be a loopback address, not {0}"
    )]
    GuestBeyondLoopback(SocketAddr),
    #[error("--{option} is {value} ms; it must be between {min} and {max}")]
    Time { option: &'static str, value: u64, min: u64, max: u64 },
    #[error("--amqp-listen is none and there is no --amqps-listen: no client could come in")]
    NoListener,
    #[error(
        "nobody could log in at --{option}: none of the --sasl-mechanisms is left for it; see --sasl-tls-only and --amqps-client-ca, or turn it off"
    )]
    NoMechanism { option: &'static str },
    #[error("--max-connections is {value}; it must be between 1 and {max}")]
    MaxConnections { value: usize, max: usize },
    #[error("--max-message-size is {value}; it must be between 1 and {max} bytes")]
    MessageSize { value: u64, max: usize },
    #[error("--memory-watermark is {0}; it must be between {min} and 100 percent of the memory limit", min = MIN_MEMORY_WATERMARK)]
    MemoryWatermark(u8),
    #[error(
        "--memory-budget is {budget}; it must be below {mark} bytes, the --memory-watermark of the memory limit, or publishers would wait for ever"
    )]
    MemoryBudget { budget: u64, mark: u64 },
    #[error("--max-catch-ups is {0}; it must be between 1 and {MOST_CATCH_UPS}")]
    MaxCatchUps(usize),
    #[error(
        "--catch-up-bandwidth is {given}; it must be 0, for no limit, or at least {least} bytes a second with this --max-catch-ups, or catch-ups would look as if they stood still"
    )]
    Bandwidth { given: u64, least: u64 },
    #[error("the replica's name {0:?} is empty, longer than 253 bytes, or has a slash in it")]
    Name(String),
}

impl TryFrom<Arguments> for Config {
    type Error = ConfigError;

    fn try_from(given: Arguments) -> Result<Self, ConfigError> {
        if given.name.is_empty() || given.name.len() > 253 || given.name.contains(['/', ',']) {
            return Err(ConfigError::Name(given.name));
        }
        let name = ReplicaName::new(&given.name);
        let peers = match (&given.peers, &given.peer_pattern) {
            (Some(list), _) => Peers::Listed(list.split(',').map(parse_peer).collect::<Result<_, _>>()?),
            (None, Some(pattern)) if pattern.contains("{name}") => Peers::Pattern(pattern.clone()),
            (None, Some(pattern)) => return Err(ConfigError::Pattern(pattern.clone())),
            (None, None) => return Err(ConfigError::NoPeers),
        };
        if let Peers::Listed(list) = &peers
            && !list.contains_key(&name)
        {
            return Err(ConfigError::NotListed(name));
        }
        let (min_in_sync, replicas) = (given.min_in_sync, given.replicas);
        if min_in_sync == 0 || min_in_sync > replicas {
            return Err(ConfigError::MinInSync { min_in_sync, replicas });
        }
        let options = Settings {
            replicas: peers.replicas(&given.cluster, replicas),
            min_in_sync,
            consumer_timeout: Duration::from_millis(given.consumer_timeout_ms),
        };
        let settings_file = given.settings_file.map(|path| SettingsFile {
            path,
            cluster: given.cluster.clone(),
            peers: peers.clone(),
            options: options.clone(),
        });
        let settings = match &settings_file {
            Some(file) => file.read()?,
            None => options,
        };
        let lease = match given.lease.split_once(':') {
            Some(("local", directory)) if !directory.is_empty() => LeasePlace::Local(directory.into()),
            Some(("kubernetes", place)) => {
                let (namespace, lease) =
                    place.split_once('/').ok_or_else(|| ConfigError::Lease(given.lease.clone()))?;
                LeasePlace::Kubernetes {
                    namespace: namespace.into(),
                    name: lease.into(),
                    pod_ip: given.pod_ip,
                    node: given.node_name,
                }
            }
            _ => return Err(ConfigError::Lease(given.lease)),
        };
        let clients = Clients::try_from(given.clients)?;
        let beyond = clients.addresses().find(|address| !address.ip().is_loopback());
        let users = match (given.users_file, beyond) {
            (Some(file), _) => Users::File(file),
            (None, None) => Users::OpenGuest,
            (None, Some(beyond)) => return Err(ConfigError::GuestBeyondLoopback(beyond)),
        };
        let max = understudy_record::MAX_BODY_BYTES;
        if given.max_message_size == 0 || given.max_message_size > max as u64 {
            return Err(ConfigError::MessageSize { value: given.max_message_size, max });
        }
        let limit =
            given.memory_limit.unwrap_or_else(|| crate::resources::memory_limit() / given.memory_sharers.max(1));
        let memory = Memory::resolve(limit, given.memory_budget, given.memory_watermark)?;
        Ok(Self {
            name,
            cluster: given.cluster,
            data_dir: given.data_dir,
            clients,
            grpc_listen: given.grpc_listen,
            http_listen: given.http_listen,
            peers,
            settings,
            settings_file,
            durability: given.durability,
            lease,
            lease_duration: millis("lease-duration-ms", given.lease_duration_ms)?,
            backup_timeout: millis("backup-timeout-ms", given.backup_timeout_ms)?,
            stall_timeout: millis("stall-timeout-ms", given.stall_timeout_ms)?,
            tls_dir: given.tls_dir,
            users,
            backup_connections: given.backup_connections,
            replicate: given.replicate.into(),
            max_message_size: given.max_message_size,
            memory_budget: memory.budget,
            segment_bytes: given.segment_bytes,
            checkpoint_bytes: given.checkpoint_bytes,
            checkpoint_rate: given.checkpoint_rate,
            memory_limit: memory.limit,
            memory_watermark: given.memory_watermark,
            disk_free_watermark: given.disk_free_watermark,
            resume_records: given.resume_records,
            scrub_interval: Duration::from_millis(given.scrub_interval_ms),
            accept_differences: given.accept_differences,
            catch_up_bandwidth: bandwidth(given.catch_up_bandwidth, given.max_catch_ups)?,
            max_catch_ups: given.max_catch_ups,
            promotion: given.promotion,
            exit_with_parent: given.exit_with_parent,
            seed: given.seed.unwrap_or_else(rand::random),
        })
    }
}

impl Config {
    /// Where `replica`'s gRPC port is; `None` if it is not one of the cluster's.
    pub fn address_of(&self, replica: &ReplicaName) -> Option<String> {
        match &self.peers {
            Peers::Listed(list) => list.get(replica).cloned(),
            Peers::Pattern(pattern) => Some(pattern.replace("{name}", replica.as_str())),
        }
    }

    /// What the node is told.
    pub(crate) fn node(&self) -> NodeConfig {
        NodeConfig {
            max_catch_ups: self.max_catch_ups,
            settings: self.settings.clone(),
            replicate: self.replicate,
            scrub_interval: self.scrub_interval,
            accept_differences: self.accept_differences,
            seed: self.seed,
            replicated_only: self.replicated_only(),
            lease_duration: self.lease_duration,
            backup_timeout: self.backup_timeout,
            stall_timeout: self.stall_timeout,
            resume_records: self.resume_records,
            checkpoint_bytes: self.checkpoint_bytes,
            memory_budget: self.memory_budget,
        }
    }

    pub fn replicated_only(&self) -> bool {
        self.durability == Durability::Replicated
    }
}

/// In bytes.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    limit: u64,
    budget: u64,
}

impl Memory {
    fn resolve(limit: u64, budget: Option<u64>, watermark: u8) -> Result<Self, ConfigError> {
        if !(MIN_MEMORY_WATERMARK..=100).contains(&watermark) {
            return Err(ConfigError::MemoryWatermark(watermark));
        }
        let share = |percent: u8| u64::try_from(u128::from(limit) * u128::from(percent) / 100).unwrap_or(u64::MAX);
        // A low watermark lowers the budget that nobody has set with it.
        let budget = budget.unwrap_or_else(|| share(DEFAULT_BUDGET_PERCENT.min(watermark / 2)));
        let mark = share(watermark);
        if budget >= mark && budget > 0 {
            return Err(ConfigError::MemoryBudget { budget, mark });
        }
        Ok(Self { limit, budget })
    }
}

/// `None`: no limit.
fn bandwidth(given: u64, catch_ups: usize) -> Result<Option<NonZeroU64>, ConfigError> {
    if !(1..=MOST_CATCH_UPS).contains(&catch_ups) {
        return Err(ConfigError::MaxCatchUps(catch_ups));
    }
    let least = LEAST_BANDWIDTH * catch_ups as u64;
    match NonZeroU64::new(given) {
        Some(limit) if limit.get() < least => Err(ConfigError::Bandwidth { given, least }),
        limit => Ok(limit),
    }
}

fn parse_peer(text: &str) -> Result<(ReplicaName, String), ConfigError> {
    match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && address.contains(':') => {
            Ok((ReplicaName::new(name), address.to_owned()))
        }
        _ => Err(ConfigError::Peer(text.to_owned())),
    }
}

/// Below 50 ms a busy machine's scheduling looks like a death; above an hour nobody waits.
fn millis(option: &'static str, value: u64) -> Result<Duration, ConfigError> {
    let (min, max) = (50, 3_600_000);
    if !(min..=max).contains(&value) {
        return Err(ConfigError::Time { option, value, min, max });
    }
    Ok(Duration::from_millis(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: &[&str]) -> Result<Config, String> {
        let base = ["understudy-broker", "--name", "a-0", "--cluster", "a", "--lease", "local:/tmp/lease"];
        let arguments = Arguments::try_parse_from(base.iter().chain(extra)).map_err(|error| error.to_string())?;
        Config::try_from(arguments).map_err(|error| error.to_string())
    }

    const GOOD: [&str; 5] =
        ["--peers", "a-0=127.0.0.1:1,a-1=127.0.0.1:2", "--open-guest", "--amqp-listen", "127.0.0.1:5672"];

    #[test]
    fn a_local_replica_finds_its_peers() {
        let config = parse(&GOOD).unwrap();
        assert_eq!(config.address_of(&ReplicaName::new("a-1")), Some("127.0.0.1:2".into()));
        assert_eq!(config.address_of(&ReplicaName::new("a-2")), None);
    }

    #[test]
    fn memory_is_shared_out_by_its_limit() {
        let table = [
            ((1000, None, 80), Memory { limit: 1000, budget: 400 }),
            ((1000, Some(799), 80), Memory { limit: 1000, budget: 799 }),
            ((1000, None, 20), Memory { limit: 1000, budget: 100 }),
            ((1000, Some(0), 80), Memory { limit: 1000, budget: 0 }),
            ((u64::MAX, Some(5), 100), Memory { limit: u64::MAX, budget: 5 }),
        ];
        for ((limit, budget, watermark), expected) in table {
            assert_eq!(Memory::resolve(limit, budget, watermark), Ok(expected));
        }
        let given = [&GOOD[..], &["--memory-sharers", "4"]].concat();
        let (alone, shared) = (parse(&GOOD).unwrap(), parse(&given).unwrap());
        assert!(alone.memory_limit > 0 && alone.memory_budget == alone.memory_limit * 2 / 5, "{alone:?}");
        assert_eq!(shared.memory_limit, alone.memory_limit / 4);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_cure() {
        let cases: [(&[&str], &str); 10] = [
            (&["--open-guest"], "--peers or --peer-pattern"),
            (&["--open-guest", "--peers", "a-1=h:1"], "does not list this replica, a-0"),
            (&["--open-guest", "--peers", "a-0=h:1"], "must be a loopback address"),
            (&["--peers", "a-0=h:1"], "--users-file"),
            (
                &["--users-file", "u", "--peers", "a-0=h:1", "--min-in-sync", "4"],
                "between 1 and --replicas, which is 3",
            ),
            (&["--users-file", "u", "--peers", "a-0=h:1", "--backup-timeout-ms", "1"], "between 50 and"),
            (&["--users-file", "u", "--peers", "a-0=h:1", "--max-catch-ups", "0"], "between 1 and"),
            (
                &["--users-file", "u", "--peers", "a-0=h:1", "--max-catch-ups", "2", "--catch-up-bandwidth", "2000000"],
                "at least 2097152 bytes a second",
            ),
            (&["--users-file", "u", "--peers", "a-0=h:1", "--memory-watermark", "5"], "between 10 and 100 percent"),
            (
                &["--users-file", "u", "--peers", "a-0=h:1", "--memory-limit", "1000", "--memory-budget", "800"],
                "--memory-budget is 800; it must be below 800 bytes",
            ),
        ];
        for (arguments, expected) in cases {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
