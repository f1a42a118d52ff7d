//! Two builds in one cluster: the present one, and one of a made-up next version, which writes a kind of record that the
//! present one does not know.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use understudy_record::FRAME_HEADER_BYTES;
use understudy_record::version::ClusterVersion;

use crate::harness::{Broker, Cluster, Load, await_true, drain_numbers};

/// The newest version that the present build knows; the other one knows one more.
const KNOWN: u64 = ClusterVersion::NEWEST.0 as u64;
const NEXT: u64 = KNOWN + 1;

/// Messages; few enough that a replica with an empty disk is soon back.
const PER_SECOND: u32 = 500;

fn present() -> PathBuf {
    env!("CARGO_BIN_EXE_understudy-broker").into()
}

fn made_up() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_understudy-broker")).parent().and_then(Path::parent).unwrap();
    let path = target.join("made-up/understudy-broker");
    assert!(path.exists(), "{} is not there: `make made-up` builds it", path.display());
    path
}

impl Cluster {
    /// Ends in good order and comes back as that build, on what it left behind.
    fn replace(&mut self, at: usize, program: PathBuf) {
        self.stop(at);
        self.start_as(at, program);
    }

    fn stop(&mut self, at: usize) {
        self.brokers[at].terminate();
        assert!(self.brokers[at].await_end().success(), "it left in good order");
    }

    fn start_as(&mut self, at: usize, program: PathBuf) {
        self.brokers[at].settings.program = program;
        self.brokers[at].restart();
    }

    fn version(&self) -> u64 {
        self.lease().unwrap().version
    }

    #[track_caller]
    fn await_version(&self, version: u64) {
        for broker in &self.brokers {
            broker.await_metric("cluster_version", version);
        }
        assert_eq!(self.version(), version);
    }

    /// The made-up records in each log.
    fn made_up_records(&self) -> [BTreeSet<MadeUp>; 3] {
        std::array::from_fn(|at| made_up_records(&self.brokers[at].settings.data))
    }

    /// Every replica holds those of exactly these epochs, each at the same place, and has applied them.
    #[track_caller]
    fn await_made_up_records(&self, epochs: &[u64]) {
        await_true(&format!("every log holds the made-up records of epochs {epochs:?}"), || {
            let records = self.made_up_records();
            let of_epochs: Vec<u64> = records[0].iter().map(|record| record.epoch).collect();
            records.iter().all(|held| *held == records[0]) && of_epochs == epochs
        });
        let last = self.made_up_records()[0].iter().map(|record| record.index).max().unwrap_or_default();
        for broker in &self.brokers {
            await_true("it is committed", || broker.metric("committed_index").is_some_and(|index| index >= last));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MadeUp {
    index: u64,
    epoch: u64,
}

/// Looks for frames whose checksum is right and whose tag is the made-up kind's: the present build cannot read them.
fn made_up_records(data: &Path) -> BTreeSet<MadeUp> {
    const META_BYTES: usize = 9;
    const TAG: u8 = 255;
    // A record, of so much meta and no body.
    let shape = [1, 0, 0, 0, META_BYTES as u8, 0, 0, 0, 0, 0, 0, 0];
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(data).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        // The tag is rare: most of a log is text here.
        let tags = bytes.iter().enumerate().filter(|(_, byte)| **byte == TAG).map(|(at, _)| at);
        for at in tags.filter(|at| *at >= FRAME_HEADER_BYTES) {
            let Some(frame) = bytes.get(at - FRAME_HEADER_BYTES..at + META_BYTES) else { continue };
            if frame[4..16] == shape && crc32c::crc32c(&frame[4..]).to_le_bytes() == frame[..4] {
                assert_eq!(number(&frame[16..24]), number(&frame[41..49]), "it says which epoch it is of");
                found.insert(MadeUp { index: number(&frame[24..32]), epoch: number(&frame[16..24]) });
            }
        }
    }
    found
}

/// It lives, says why it cannot take part, and is no reason to restart it.
#[track_caller]
fn waits_for_an_upgrade(broker: &mut Broker) {
    broker.await_metric("needs_upgrade", 1);
    let cure = format!("the cluster is at version {NEXT}: upgrade it to one that knows version {NEXT}");
    broker.await_log(&cure);
    assert_eq!(broker.log().matches(&cure).count(), 1, "said once:\n{}", broker.log());
    assert!(broker.http("/livez").is_some() && broker.http("/startupz").is_some());
    assert!(!broker.is_ready());
    assert!(!broker.has_ended());
}

#[test]
fn a_cluster_is_upgraded_under_load_one_replica_at_a_time() {
    let (present, made_up) = (present(), made_up());
    let mut cluster = Cluster::start();
    cluster.await_version(KNOWN);
    let load = Load::paced(cluster.addresses(), "work", PER_SECOND);
    load.await_more(50);

    // One new build among two old ones, as backup and as primary: nobody is written to in words that it does not know.
    let old_primary = cluster.primary();
    let [new, other] = cluster.backups();
    cluster.replace(new, made_up.clone());
    cluster.await_all_in_sync();
    load.await_more(50);
    cluster.stop(other);
    cluster.await_set(&[old_primary, new]);
    cluster.stop(old_primary);
    assert_eq!(cluster.await_other_primary(old_primary), new);
    cluster.start_as(other, present.clone());
    cluster.start_as(old_primary, present.clone());
    cluster.await_all_in_sync();
    load.await_more(50);
    cluster.await_version(KNOWN);

    // The second of three; then the last one, and the version goes up.
    cluster.replace(other, made_up.clone());
    cluster.await_all_in_sync();
    load.await_more(50);
    cluster.await_version(KNOWN);
    assert_eq!(cluster.made_up_records(), std::array::from_fn(|_| BTreeSet::new()), "written before all knew it");
    cluster.replace(old_primary, made_up.clone());
    cluster.await_all_in_sync();
    cluster.await_version(NEXT);
    let first = cluster.lease().unwrap().epoch;
    cluster.await_made_up_records(&[first]);
    load.await_more(50);

    // The next primary writes it too, from its first moment.
    cluster.replace(new, made_up.clone());
    cluster.await_other_primary(new);
    cluster.await_all_in_sync();
    cluster.await_made_up_records(&[first, first + 1]);
    load.await_more(50);

    // An old build comes back, on the store that it left long ago to a newer one, and then on an empty disk.
    let [back, _] = cluster.backups();
    cluster.stop(back);
    for empty in [false, true] {
        let settings = &cluster.brokers[back].settings;
        if empty {
            std::fs::remove_dir_all(&settings.data).unwrap();
        }
        std::fs::remove_file(&settings.log).unwrap();
        cluster.start_as(back, present.clone());
        waits_for_an_upgrade(&mut cluster.brokers[back]);
        load.await_more(50);
        assert!(!cluster.brokers[back].has_ended());
        cluster.stop(back);
        assert_eq!(cluster.version(), NEXT);
    }
    cluster.start_as(back, made_up);
    cluster.await_all_in_sync();
    load.await_more(50);

    let published = load.stop();
    published.check(&drain_numbers(&mut cluster.client(), "work"));
    eprintln!(
        "upgraded from version {KNOWN} to {NEXT}: {} confirmed, {} uncertain, longest gap {:?}",
        published.confirmed.len(),
        published.uncertain.len(),
        published.gap
    );
}
