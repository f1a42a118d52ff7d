//! Three brokers of one cluster over a Lease in a directory.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tempfile::TempDir;

use super::{Broker, Client, Places, Settings, await_some, await_true, free_ports, write_certificates};

pub(crate) struct Cluster {
    pub(crate) brokers: Vec<Broker>,
    pub(crate) root: TempDir,
    _places: Places,
}

/// What the Lease says, by names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseSeen {
    pub(crate) holder: String,
    pub(crate) epoch: u64,
    pub(crate) in_sync: BTreeSet<String>,
    /// The cluster's.
    pub(crate) version: u64,
}

impl Cluster {
    /// All three are in sync on return.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl Fn(&mut Settings)) -> Self {
        let places = Places::take(3);
        let root = tempfile::tempdir().unwrap();
        write_certificates(&root.path().join("tls"));
        let ports: [[u16; 3]; 3] = std::array::from_fn(|_| free_ports());
        let name = |at: usize| format!("test-{at}");
        let peers: Vec<_> = (0..3).map(|at| (name(at), ports[at][1])).collect();
        let brokers = (0..3).map(|at| {
            let [amqp, grpc, http] = ports[at];
            let mut settings = Settings {
                name: name(at),
                data: root.path().join(name(at)),
                log: root.path().join(format!("{}.log", name(at))),
                peers: peers.clone(),
                min_in_sync: 2,
                amqp,
                grpc,
                http,
                ..Settings::single(root.path())
            };
            change(&mut settings);
            settings.start()
        });
        let cluster = Self { brokers: brokers.collect(), root, _places: places };
        cluster.await_all_in_sync();
        cluster
    }

    pub(crate) fn lease(&self) -> Option<LeaseSeen> {
        let text = std::fs::read_to_string(self.lease_file()).ok()?;
        let lease: serde_json::Value = serde_json::from_str(&text).ok()?;
        let name = |text: &serde_json::Value| text.as_str().and_then(|id| id.split('/').next()).map(str::to_owned);
        Some(LeaseSeen {
            holder: name(&lease["holder"])?,
            epoch: lease["epoch"].as_u64()?,
            version: lease["cluster_version"].as_u64()?,
            in_sync: lease["in_sync"].as_array()?.iter().filter_map(name).collect(),
        })
    }

    pub(crate) fn lease_file(&self) -> std::path::PathBuf {
        self.root.path().join("lease").join("lease.json")
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(Broker::amqp).collect()
    }

    #[track_caller]
    pub(crate) fn await_all_in_sync(&self) {
        for broker in &self.brokers {
            broker.await_ready();
        }
        await_true("the Lease holds all three", || self.lease().is_some_and(|lease| lease.in_sync.len() == 3));
    }

    /// The broker that the Lease names and that serves as primary.
    #[track_caller]
    pub(crate) fn primary(&self) -> usize {
        await_some("a primary serves", || {
            let holder = self.lease()?.holder;
            let at = self.brokers.iter().position(|broker| broker.settings.name == holder)?;
            (self.brokers[at].metric("primary") == Some(1)).then_some(at)
        })
    }

    pub(crate) fn backups(&self) -> [usize; 2] {
        let primary = self.primary();
        [(primary + 1) % 3, (primary + 2) % 3]
    }

    pub(crate) fn name(&self, at: usize) -> String {
        self.brokers[at].settings.name.clone()
    }

    /// A client of the primary itself.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::guest(self.brokers[self.primary()].amqp())
    }

    /// Another broker than `old` is the primary.
    #[track_caller]
    pub(crate) fn await_other_primary(&self, old: usize) -> usize {
        await_some("another broker is the primary", || Some(self.primary()).filter(|primary| *primary != old))
    }

    /// The Lease's set is exactly these.
    #[track_caller]
    pub(crate) fn await_set(&self, members: &[usize]) {
        let expected: BTreeSet<_> = members.iter().map(|at| self.name(*at)).collect();
        await_true(&format!("the in-sync set is {expected:?}"), || {
            self.lease().is_some_and(|lease| lease.in_sync == expected)
        });
    }
}
