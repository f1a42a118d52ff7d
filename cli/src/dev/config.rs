//! What `understudy dev` was asked for, checked: numbers in range, ports free, the broker found, the directory made and ours
//! alone. What comes out can be started.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use understudy_election::Timings;
use understudy_record::ReplicaName;

use super::elector::Place;
use super::ports::{self, PortError, loopback};
use super::supervisor::Launch;
use crate::arguments::{DevOptions, Durability};
use crate::cluster_file::{BrokerEntry, ClusterFile};

pub(crate) const CLUSTER: &str = "dev";
/// As in a BrokerCluster.
const MOST_REPLICAS: u8 = 9;
const BROKER: &str = "understudy-broker";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--replicas {0}: between 1 and {MOST_REPLICAS}")]
    Replicas(u8),
    #[error(
        "--min-in-sync {min}: between 1 and the number of replicas, {replicas}; with more nothing could ever be confirmed"
    )]
    MinInSync { min: u8, replicas: u8 },
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("{}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("another `understudy dev` is at work on {}: stop it, or give another --dir", .0.display())]
    InUse(PathBuf),
    #[error("there is no executable file {}: give the broker's with --broker-bin", .0.display())]
    NoSuchBroker(PathBuf),
    #[error(
        "the broker's executable `{BROKER}` is neither beside this one nor on PATH: build it (cargo build -p {BROKER}), or \
         say where it is with --broker-bin"
    )]
    BrokerNotFound,
}

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) dir: Directory,
    pub(crate) broker: PathBuf,
    /// For each broker, behind those it has from here.
    pub(crate) broker_arguments: Vec<String>,
    pub(crate) places: Vec<Place>,
    pub(crate) min_in_sync: u8,
    pub(crate) durability: Durability,
    pub(crate) timings: Timings,
    pub(crate) verbose: bool,
}

/// The cluster's directory, held by a lock as long as this lives; a temporary one disappears with it.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
    temporary: Option<tempfile::TempDir>,
}

impl Directory {
    fn given(path: &Path) -> Result<Self, ConfigError> {
        let unusable = |source| ConfigError::Directory { path: path.into(), source };
        fs::create_dir_all(path).map_err(unusable)?;
        // Brokers are told absolute paths: they mean the same to everybody.
        let path = path.canonicalize().map_err(unusable)?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock, temporary: None })
    }

    fn temporary() -> Result<Self, ConfigError> {
        let temporary = tempfile::Builder::new()
            .prefix("understudy-dev-")
            .tempdir()
            .map_err(|source| ConfigError::Directory { path: std::env::temp_dir(), source })?;
        let path = temporary.path().to_path_buf();
        Ok(Self { _lock: lock(&path)?, path, temporary: Some(temporary) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn tls(&self) -> PathBuf {
        self.path.join("tls")
    }

    /// Of clients, and for them.
    pub(crate) fn amqps(&self) -> PathBuf {
        self.path.join("amqps")
    }

    pub(crate) fn lease(&self) -> PathBuf {
        self.path.join("lease")
    }

    fn data(&self, broker: &ReplicaName) -> PathBuf {
        self.path.join(broker.as_str())
    }

    /// A temporary one stays then too.
    pub(crate) fn keep(&mut self) -> &Path {
        if let Some(temporary) = &mut self.temporary {
            temporary.disable_cleanup(true);
        }
        &self.path
    }

    pub(crate) fn log(&self, broker: &ReplicaName) -> PathBuf {
        self.path.join(format!("{broker}.log"))
    }
}

fn lock(dir: &Path) -> Result<File, ConfigError> {
    let path = dir.join("dev.lock");
    let unusable = |source| ConfigError::Directory { path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ConfigError::InUse(dir.into())),
        Err(TryLockError::Error(source)) => Err(unusable(source)),
    }
}

impl TryFrom<&DevOptions> for Config {
    type Error = ConfigError;

    fn try_from(options: &DevOptions) -> Result<Self, ConfigError> {
        let replicas = options.replicas;
        if !(1..=MOST_REPLICAS).contains(&replicas) {
            return Err(ConfigError::Replicas(replicas));
        }
        let min = options.min_in_sync.unwrap_or(replicas.min(2));
        if !(1..=replicas).contains(&min) {
            return Err(ConfigError::MinInSync { min, replicas });
        }
        let broker = match &options.broker_bin {
            Some(path) => {
                path.is_file().then(|| path.clone()).ok_or_else(|| ConfigError::NoSuchBroker(path.clone()))?
            }
            None => find_broker().ok_or(ConfigError::BrokerNotFound)?,
        };
        let dir = options.dir.as_deref().map_or_else(Directory::temporary, Directory::given)?;
        Ok(Self {
            dir,
            broker,
            broker_arguments: options.broker_arguments.clone(),
            places: places(replicas, options.amqp_port, options.tls)?,
            min_in_sync: min,
            durability: options.durability,
            timings: Timings::default(),
            verbose: options.verbose,
        })
    }
}

fn places(replicas: u8, amqp_port: u16, tls: Option<u16>) -> Result<Vec<Place>, PortError> {
    let names: Vec<_> = (0..replicas).map(|n| format!("{CLUSTER}-{n}")).collect();
    let amqp = ports::amqp_ports(amqp_port, &names)?;
    let amqps = match tls {
        None => Vec::new(),
        Some(first) => ports::amqps_ports(first, &names, &amqp)?,
    };
    // In one piece, so that no port is found twice. Should the AMQP ports lie in it, they are not ours to give again.
    let others = loop {
        let others = ports::free_ports(2 * u16::from(replicas))?;
        if !others.iter().any(|port| amqp.contains(port) || amqps.contains(port)) {
            break others;
        }
    };
    let place = |(at, others): (usize, &[u16])| Place {
        name: ReplicaName::new(&names[at]),
        amqp: loopback(amqp[at]),
        amqps: amqps.get(at).copied().map(loopback),
        grpc: loopback(others[0]),
        http: loopback(others[1]),
    };
    Ok(others.chunks_exact(2).enumerate().map(place).collect())
}

fn find_broker() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(BROKER)));
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let on_path = on_path.into_iter().flatten().map(|dir| dir.join(BROKER));
    beside.into_iter().chain(on_path).find(|path| path.is_file())
}

impl Config {
    pub(crate) fn launches(&self) -> Vec<Launch> {
        self.places.iter().map(|place| self.launch(place)).collect()
    }

    fn launch(&self, place: &Place) -> Launch {
        let peers: Vec<_> = self.places.iter().map(|place| format!("{}={}", place.name, place.grpc)).collect();
        let timings = &self.timings;
        let with_value = [
            ("--name", place.name.to_string()),
            ("--cluster", CLUSTER.into()),
            ("--data-dir", self.dir.data(&place.name).display().to_string()),
            ("--amqp-listen", place.amqp.to_string()),
            ("--grpc-listen", place.grpc.to_string()),
            ("--http-listen", place.http.to_string()),
            ("--peers", peers.join(",")),
            ("--replicas", self.places.len().to_string()),
            ("--min-in-sync", self.min_in_sync.to_string()),
            ("--durability", self.durability.as_argument().into()),
            ("--lease", format!("local:{}", self.dir.lease().display())),
            ("--lease-duration-ms", timings.lease_duration.as_millis().to_string()),
            ("--backup-timeout-ms", timings.backup_timeout.as_millis().to_string()),
            ("--stall-timeout-ms", timings.stall_timeout.as_millis().to_string()),
            ("--tls-dir", self.dir.tls().display().to_string()),
            ("--memory-sharers", self.places.len().to_string()),
        ];
        let mut arguments: Vec<String> =
            with_value.into_iter().flat_map(|(flag, value)| [flag.into(), value]).collect();
        arguments.extend(["--open-guest".into(), "--exit-with-parent".into()]);
        if let Some(amqps) = place.amqps {
            let file = |name: &str| self.dir.amqps().join(name).display().to_string();
            let with_value = [
                ("--amqps-listen", amqps.to_string()),
                ("--amqps-cert", file("tls.crt")),
                ("--amqps-key", file("tls.key")),
                ("--amqps-client-ca", file("ca.crt")),
            ];
            arguments.extend(with_value.into_iter().flat_map(|(flag, value)| [flag.into(), value]));
        }
        arguments.extend_from_slice(&self.broker_arguments);
        Launch {
            name: place.name.clone(),
            program: self.broker.clone(),
            arguments,
            log: self.dir.log(&place.name),
            verbose: self.verbose,
        }
    }

    pub(crate) fn cluster_file(&self) -> ClusterFile {
        let entry = |place: &Place| BrokerEntry {
            name: place.name.to_string(),
            pid: None,
            amqp: place.amqp,
            grpc: place.grpc,
            http: place.http,
            data_dir: self.dir.data(&place.name),
            log: self.dir.log(&place.name),
        };
        ClusterFile {
            pid: std::process::id(),
            cluster: CLUSTER.into(),
            min_in_sync: self.min_in_sync,
            durability: self.durability.as_argument().into(),
            tls_dir: self.dir.tls(),
            lease_dir: self.dir.lease(),
            brokers: self.places.iter().map(entry).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DevOptions {
        DevOptions {
            replicas: 3,
            dir: None,
            amqp_port: 0,
            tls: None,
            min_in_sync: None,
            durability: Durability::Fsync,
            json: false,
            broker_bin: Some("/bin/sh".into()),
            broker_arguments: Vec::new(),
            verbose: false,
        }
    }

    fn refused(options: &DevOptions) -> String {
        Config::try_from(options).unwrap_err().to_string()
    }

    #[test]
    fn impossible_numbers_are_refused_with_the_possible_ones() {
        assert_eq!(refused(&DevOptions { replicas: 0, ..options() }), "--replicas 0: between 1 and 9");
        assert_eq!(refused(&DevOptions { replicas: 10, ..options() }), "--replicas 10: between 1 and 9");
        assert!(refused(&DevOptions { min_in_sync: Some(4), ..options() }).starts_with("--min-in-sync 4"));
        assert!(refused(&DevOptions { min_in_sync: Some(0), ..options() }).starts_with("--min-in-sync 0"));
    }

    #[test]
    fn a_single_replica_confirms_by_itself() {
        let config = Config::try_from(&DevOptions { replicas: 1, ..options() }).unwrap();
        assert_eq!((config.places.len(), config.min_in_sync), (1, 1));
    }

    #[test]
    fn a_broker_that_is_not_there_is_named() {
        let error = refused(&DevOptions { broker_bin: Some("/nowhere/broker".into()), ..options() });
        assert!(error.contains("/nowhere/broker") && error.contains("--broker-bin"), "{error}");
    }

    #[test]
    fn no_port_is_given_twice() {
        let config = Config::try_from(&DevOptions { replicas: 9, ..options() }).unwrap();
        let ports: std::collections::BTreeSet<_> =
            config.places.iter().flat_map(|place| [place.amqp, place.grpc, place.http]).collect();
        assert_eq!(ports.len(), 27);
    }

    #[test]
    fn a_directory_has_one_supervisor() {
        let dir = tempfile::tempdir().unwrap();
        let with_dir = DevOptions { dir: Some(dir.path().into()), ..options() };
        let first = Config::try_from(&with_dir).unwrap();
        assert!(refused(&with_dir).contains("another `understudy dev`"));
        drop(first);
        Config::try_from(&with_dir).unwrap();
    }

    #[test]
    fn a_temporary_directory_goes_and_a_given_one_stays() {
        let temporary = Config::try_from(&options()).unwrap();
        let path = temporary.dir.path().to_path_buf();
        assert!(path.is_dir());
        drop(temporary);
        assert!(!path.exists());
        let outer = tempfile::tempdir().unwrap();
        let given = outer.path().join("a/b");
        drop(Config::try_from(&DevOptions { dir: Some(given.clone()), ..options() }).unwrap());
        assert!(given.is_dir());
    }

    #[test]
    fn tls_has_a_port_of_its_own_on_each_broker() {
        let config = Config::try_from(&DevOptions { tls: Some(0), ..options() }).unwrap();
        let ports: std::collections::BTreeSet<_> =
            config.places.iter().flat_map(|place| [Some(place.amqp), place.amqps, Some(place.grpc)]).collect();
        assert_eq!(ports.len(), 9);
        for (place, launch) in config.places.iter().zip(config.launches()) {
            let at = launch.arguments.iter().position(|argument| argument == "--amqps-listen").unwrap();
            assert_eq!(launch.arguments[at + 1], place.amqps.unwrap().to_string());
        }
        let taken = config.places[0].amqp.port();
        let both = DevOptions { amqp_port: taken, tls: Some(taken), ..options() };
        assert!(refused(&both).contains("--tls"), "{}", refused(&both));
    }

    #[test]
    fn each_broker_is_told_where_all_are() {
        let given = DevOptions { broker_arguments: vec!["--resume-records=7".into()], ..options() };
        let config = Config::try_from(&given).unwrap();
        let launch = &config.launches()[1];
        let value = |flag: &str| {
            let at = launch.arguments.iter().position(|argument| argument == flag).unwrap();
            launch.arguments[at + 1].clone()
        };
        assert_eq!(value("--name"), "dev-1");
        assert_eq!(value("--min-in-sync"), "2");
        assert_eq!(value("--memory-sharers"), "3");
        assert_eq!(value("--grpc-listen"), config.places[1].grpc.to_string());
        let peers: Vec<_> = config.places.iter().map(|place| format!("{}={}", place.name, place.grpc)).collect();
        assert_eq!(value("--peers"), peers.join(","));
        assert!(value("--lease").starts_with("local:/"));
        assert!(launch.arguments.iter().any(|argument| argument == "--open-guest"));
        assert!(launch.arguments.iter().any(|argument| argument == "--exit-with-parent"));
        assert_eq!(launch.arguments.last().map(String::as_str), Some("--resume-records=7"));
    }
}
