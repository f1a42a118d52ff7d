//! The file store: crashes, stopped writers, damage.

use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use tempfile::TempDir;
use understudy_election::{Incarnation, Stored, Version};
use understudy_lease::{LeaseError, LeaseStore, LocalLease, SwapError};
use understudy_record::version::ClusterVersion;

use super::{begin, contract, elected, first_lease, held, identity, within};

/// Three handles of one directory, which does not exist yet.
fn handles(dir: &TempDir) -> contract::Handles {
    let store = || Arc::new(LocalLease::new(dir.path().join("cluster"))) as Arc<dyn LeaseStore>;
    vec![store(), store(), store()]
}

macro_rules! contract {
    ($($name:ident),+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() {
            let dir = tempfile::tempdir().unwrap();
            contract::$name(handles(&dir)).await;
        }
    )+};
}
contract!(
    what_is_written_is_read,
    only_the_version_expected_is_replaced,
    of_many_contenders_one_wins_each_epoch,
    a_watch_shows_the_present_and_each_change
);

#[tokio::test]
async fn a_lease_created_anew_has_no_version_of_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let before = begin(&store, &first_lease()).await;
    fs::remove_file(dir.path().join("lease.json")).unwrap();
    assert_eq!(store.swap(&before, &first_lease()).await, Err(SwapError::Conflict));
    begin(&store, &first_lease()).await;
    assert_eq!(store.swap(&before, &first_lease()).await, Err(SwapError::Conflict));
}

/// A crash leaves a lock file, which is free, and a half-written Lease beside the one in force.
#[tokio::test]
async fn a_crash_at_any_point_leaves_a_lease_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let version = begin(&store, &first_lease()).await;
    let torn = dir.path().join("lease.new-1-0");
    fs::write(&torn, "{\"incarnation\": 1, \"cou").unwrap();
    let fresh = dir.path().join("lease.new-2-0");
    fs::write(&fresh, "").unwrap();
    let old = SystemTime::now() - Duration::from_secs(3_600);
    File::options().write(true).open(&torn).unwrap().set_modified(old).unwrap();

    assert_eq!(held(&store).await.1, version);
    store.swap(&version, &elected(&first_lease(), "b")).await.unwrap();
    assert!(!torn.exists(), "what a dead writer left is removed");
    assert!(fresh.exists(), "what may belong to a living writer is not");
}

#[tokio::test]
async fn a_writer_that_was_stopped_with_the_lock_hangs_nobody_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let version = begin(&store, &first_lease()).await;
    let lock = File::open(dir.path().join("lease.lock")).unwrap();
    lock.lock().unwrap();
    let refused = within(store.swap(&version, &first_lease())).await.unwrap_err();
    assert!(matches!(&refused, SwapError::Refused { why } if why.contains("lease.lock")), "{refused}");
    drop(lock);
    store.swap(&version, &first_lease()).await.unwrap();
}

#[tokio::test]
async fn a_lease_of_before_there_were_versions_is_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let raised = first_lease().raised(&identity("a"), ClusterVersion(3)).unwrap();
    begin(&store, &raised).await;
    let file = dir.path().join("lease.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("  \"cluster_version\": 3,\n", "")).unwrap();
    assert_eq!(held(&store).await.0.cluster_version(), ClusterVersion::FIRST);
}

#[tokio::test]
async fn damage_is_named_and_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let version = begin(&store, &first_lease()).await;
    let file = dir.path().join("lease.json");
    let whole = fs::read_to_string(&file).unwrap();
    for (damaged, field) in [
        (String::new(), "lease.json"),
        (whole[..whole.len() / 2].to_owned(), "lease.json"),
        ("x".repeat(1 << 20), "lease.json"),
        (whole.replace("a/000", "a/xyz"), "holder"),
        (whole.replace("b/000", "b/xyz"), "in_sync"),
        (whole.replace("\"epoch\": 1", "\"epoch\": 0"), "lease.json"),
        (whole.replace("\"epoch\": 1", "\"epoch\": null"), "epoch"),
        (whole.replace("\"in_sync\"", "\"in-sync\""), "in_sync"),
        (whole.replace("\"duration_ms\"", "\"duration\""), "duration_ms"),
        (whole.replace("\"incarnation\"", "\"life\""), "lease.json"),
        (whole.replace("\"cluster_version\": 1", "\"cluster_version\": 0"), "lease.json"),
    ] {
        fs::write(&file, &damaged).unwrap();
        let error = store.read().await.unwrap_err();
        assert!(matches!(error, LeaseError::Malformed { field: found, .. } if found == field), "{field}: {error}");
        let refused = store.swap(&version, &first_lease()).await.unwrap_err();
        assert!(matches!(refused, SwapError::Refused { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), damaged);
    }
}

#[tokio::test]
async fn a_watch_reports_damage_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    let mut watch = store.watch();
    assert_eq!(within(watch.next()).await, Some(Ok(Stored::Absent)));
    fs::write(dir.path().join("lease.json"), "{}").unwrap();
    assert!(within(watch.next()).await.unwrap().is_err());
    fs::remove_file(dir.path().join("lease.json")).unwrap();
    assert_eq!(within(watch.next()).await, Some(Ok(Stored::Absent)));
    let version = begin(&store, &first_lease()).await;
    assert_eq!(within(watch.next()).await.unwrap().unwrap().into_held().unwrap().1, version);
}

#[tokio::test]
async fn a_version_of_another_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalLease::new(dir.path());
    begin(&store, &first_lease()).await;
    for (incarnation, counter) in [("", ""), ("", "7"), ("x", "1"), ("1", "x"), ("1", "18446744073709551615")] {
        let version = Version::new(Incarnation::new(incarnation), counter);
        let refused = store.swap(&version, &first_lease()).await.unwrap_err();
        assert!(matches!(refused, SwapError::Refused { .. }), "{version}: {refused}");
    }
}
