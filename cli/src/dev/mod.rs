//! `understudy dev`: a cluster of broker processes on this machine, with the election code and the timings that a cluster in
//! Kubernetes has, over a Lease kept in a file.
//!
//! [`LocalCluster`] is the cluster without a face (the demonstration uses it too); [`run`] adds the printing and the
//! signals. Brokers are reached by their ports and processes only: nothing of a broker runs in this process.

mod config;
mod elector;
mod events;
mod pki;
mod ports;
mod supervisor;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;
use time::OffsetDateTime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use understudy_lease::{LeaseStore, LocalLease};

pub(crate) use config::{Config, Directory};
pub(crate) use elector::role_name;
pub(crate) use events::Event;

use crate::arguments::{DevOptions, Durability};
use crate::control::Tls;
use elector::{Elector, Plan};
use events::Events;
use supervisor::{Listeners, Roster, Supervisor};

/// For the last lines to be read; who does not read them does not keep us.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

pub(crate) async fn run(options: DevOptions) -> anyhow::Result<ExitCode> {
    let config = Config::try_from(&options)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (cluster, events) = LocalCluster::start(config).await?;
    let printer = events::print(events, options.json);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    eprintln!("stopping");
    cluster.stop().await;
    // Nobody tells anything any more, so the printer ends, unless our output is not read.
    let deadline = Instant::now() + LAST_LINES_WITHIN;
    while !printer.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Brokers at work, and who looks after them. Dropping it kills the brokers; [`LocalCluster::stop`] asks them first.
pub(crate) struct LocalCluster {
    supervisor: Supervisor,
    elector: JoinHandle<()>,
    /// Outlives the brokers: a temporary directory goes with it.
    config: Config,
}

impl LocalCluster {
    /// Starts the brokers; what becomes of them is told by the receiver, [`Event::Ready`] once.
    pub(crate) async fn start(config: Config) -> anyhow::Result<(Self, mpsc::Receiver<Event>)> {
        pki::ensure(&config.dir.tls(), pki::Use::Peers, OffsetDateTime::now_utc())?;
        if config.places.iter().any(|place| place.amqps.is_some()) {
            pki::ensure(&config.dir.amqps(), pki::Use::Clients, OffsetDateTime::now_utc())?;
        }
        let (events, told) = Events::channel();
        let store = LocalLease::new(config.dir.lease());
        let before = store.read().await.context("the lease in the cluster's directory cannot be read")?;
        let plan = Plan {
            cluster: config::CLUSTER.into(),
            places: config.places.clone(),
            processes_in_set: config.durability == Durability::Replicated,
            timings: config.timings,
            tls: Tls::read(&config.dir.tls())?,
        };
        let (elector, words) = Elector::new(plan, store, before, events.clone());
        let roster = Arc::new(Roster::new(config.dir.path(), config.cluster_file()));
        let supervisor = Supervisor::start(config.launches(), &Listeners { elector: words, events, roster });
        let elector = tokio::spawn(elector.run());
        Ok((Self { supervisor, elector, config }, told))
    }

    /// Sends a signal to a broker's process, such as SIGKILL: it is started again then. The time right before the signal;
    /// `None` if the broker does not run now.
    pub(crate) async fn signal(&self, name: &str, signal: Signal) -> Option<Instant> {
        self.supervisor.signal(name, signal).await
    }

    /// The brokers' names, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.config.places.iter().map(|place| place.name.to_string()).collect()
    }

    pub(crate) fn amqp_addresses(&self) -> Vec<String> {
        self.config.places.iter().map(|place| place.amqp.to_string()).collect()
    }

    /// No elections on the way out: the next start is the next election. A temporary directory is gone once what this
    /// returns is dropped.
    pub(crate) async fn stop(self) -> Directory {
        self.elector.abort();
        let lease = LocalLease::new(self.config.dir.lease()).read().await;
        let primary = lease.ok().and_then(|seen| seen.lease()?.holder().map(|holder| holder.name.clone()));
        self.supervisor.stop(primary).await;
        self.config.dir
    }
}
