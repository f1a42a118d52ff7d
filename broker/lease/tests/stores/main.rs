//! Both stores against one contract, and each against the failures only it has. The Kubernetes store speaks to a fake API
//! server in this process: no network.

#![allow(clippy::unwrap_used, reason = "the helpers of a test fail as the test itself does")]

mod contract;
mod fake_api;
mod kubernetes;
mod local;

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_election::{Lease, Version};
use understudy_lease::LeaseStore;
use understudy_record::{Identity, Member, ProcessId, ReplicaName, StoreId};

/// Far more than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

fn identity(name: &str) -> Identity {
    Identity { name: ReplicaName::new(name), store: StoreId(name.bytes().map(u128::from).sum()), process: ProcessId(1) }
}

fn set(names: &[&str]) -> BTreeSet<Member> {
    names.iter().map(|name| identity(name).member(false)).collect()
}

/// `a` is primary of epoch 1, with `b` and `c` in sync.
fn first_lease() -> Lease {
    Lease::bootstrap(&identity("a"), set(&["a", "b", "c"]), Duration::from_millis(1_500)).expect("a is in its set")
}

fn elected(lease: &Lease, name: &str) -> Lease {
    let reachable = ["a", "b", "c"].map(identity).into();
    lease.elect(&identity(name), &reachable).expect("a member of the set")
}

/// A Lease comes to be, and gets its first content.
async fn begin(store: &dyn LeaseStore, lease: &Lease) -> Version {
    let created = store.create().await.unwrap();
    store.swap(&created, lease).await.unwrap()
}

/// The Lease in the store, which is not blank.
async fn held(store: &dyn LeaseStore) -> (Lease, Version) {
    store.read().await.unwrap().into_held().expect("there is a Lease")
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("done before the deadline")
}
