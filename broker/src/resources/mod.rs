//! How much memory this process uses and how much room its volume has: sampled on a thread of its own, judged against
//! watermarks, told to the core thread when an alarm comes or goes. It frees nothing and stops nobody: what an alarm leads
//! to is the primary's business.

mod alarm;
mod limits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use understudy_node::{Event, Shared, Usage};
use understudy_record::Alarms;

pub(crate) use alarm::Watermarks;
pub(crate) use limits::memory_limit;

use crate::config::Config;

/// Between two looks. Reserves are sized so that what publishers write meanwhile fits: at 1 GB/s half a second fills what
/// the smallest default watermark of a large volume, 2 GiB, leaves four times over.
const INTERVAL: Duration = Duration::from_millis(500);

/// What was seen at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Resident set of this process.
    pub(crate) resident: u64,
    pub(crate) volume: Option<Volume>,
}

/// The file system of the data directory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// To a process without privileges.
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Takes samples for as long as the process lives.
pub(crate) struct Sampler {
    name: String,
    data_dir: PathBuf,
    watermarks: Watermarks,
    budget: u64,
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    alarms: Alarms,
    /// The volume could not be asked; said once.
    blind: bool,
}

impl Sampler {
    pub(crate) fn new(config: &Config, shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        let watermarks = Watermarks {
            memory_limit: config.memory_limit,
            memory_percent: config.memory_watermark,
            disk_free: config.disk_free_watermark,
        };
        Self {
            name: config.name.to_string(),
            data_dir: config.data_dir.clone(),
            watermarks,
            budget: config.memory_budget,
            shared,
            events,
            alarms: Alarms::default(),
            blind: false,
        }
    }

    /// A thread, since a volume on a network may keep its caller waiting.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub(crate) fn start(mut self) -> std::io::Result<()> {
        std::thread::Builder::new().name("resources".into()).spawn(move || {
            while self.look() {
                std::thread::sleep(INTERVAL);
            }
        })?;
        Ok(())
    }

    /// `false` once nobody listens any more.
    fn look(&mut self) -> bool {
        let sample = Sample { resident: limits::resident_bytes().unwrap_or(0), volume: self.volume() };
        let before = self.alarms;
        self.alarms = alarm::after(before, &sample, &self.watermarks);
        self.shared.usage.send_replace(Usage {
            resident: sample.resident,
            limit: self.watermarks.memory_limit,
            budget: self.budget,
            disk_free: sample.volume.map_or(0, |volume| volume.free),
            disk_free_watermark: sample.volume.map_or(0, |volume| self.watermarks.disk_free(volume.total)),
            alarms: self.alarms,
        });
        if self.alarms == before {
            return !self.events.is_closed();
        }
        self.tell(before);
        self.events.blocking_send(Event::Alarms(self.alarms)).is_ok()
    }

    fn tell(&self, before: Alarms) {
        for text in alarm::since(self.alarms, before).describe(&self.name) {
            tracing::warn!("alarm: {text}; publishers wait");
        }
        if before.memory.is_some() && self.alarms.memory.is_none() {
            tracing::info!("the memory alarm is over");
        }
        if before.disk.is_some() && self.alarms.disk.is_none() {
            tracing::info!("the disk alarm is over");
        }
    }

    fn volume(&mut self) -> Option<Volume> {
        match volume(&self.data_dir) {
            Ok(volume) => {
                self.blind = false;
                Some(volume)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::warn!("the free space of {} is unknown: {error}", self.data_dir.display());
                }
                None
            }
        }
    }
}

fn volume(directory: &Path) -> std::io::Result<Volume> {
    let space = rustix::fs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(Volume { free: bytes(space.f_bavail), total: bytes(space.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_size_and_a_directory_that_is_not_there_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let seen = volume(directory.path()).unwrap();
        assert!(seen.total > 0 && seen.free <= seen.total, "{seen:?}");
        assert!(volume(&directory.path().join("nothing")).is_err());
    }
}
