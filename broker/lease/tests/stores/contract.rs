//! What every store must do.

use std::sync::Arc;

use futures::StreamExt;
use understudy_election::Stored;
use understudy_lease::{LeaseStore, SwapError};
use understudy_record::Epoch;
use understudy_record::version::ClusterVersion;

use super::{begin, elected, first_lease, held, identity, set, within};

/// Handles on one and the same Lease, each as another process would have it.
pub(crate) type Handles = Vec<Arc<dyn LeaseStore>>;

pub(crate) async fn what_is_written_is_read(stores: Handles) {
    let (one, two) = (&stores[0], &stores[1]);
    assert_eq!(one.read().await, Ok(Stored::Absent));
    let first = first_lease();
    let version = begin(one.as_ref(), &first).await;
    let (read, read_version) = held(two.as_ref()).await;
    assert!(read.same_configuration(&first), "{read}");
    assert_eq!((read.duration(), &read_version), (first.duration(), &version));
    assert!(read.renewed_at().is_some());

    let smaller = first.with_set(&identity("a"), set(&["a", "b"])).unwrap();
    let version = two.swap(&version, &smaller).await.unwrap();
    let (read, read_version) = held(one.as_ref()).await;
    assert!(read.same_configuration(&smaller), "{read}");
    assert_eq!((read_version.clone(), read.cluster_version()), (version.clone(), ClusterVersion::FIRST));

    let raised = read.raised(&identity("a"), ClusterVersion(3)).unwrap();
    let version = one.swap(&version, &raised).await.unwrap();
    assert_eq!(held(two.as_ref()).await.0.cluster_version(), ClusterVersion(3));

    // Epochs that may have been given in a Lease that was deleted, until an election goes beyond them.
    let anew = raised.as_it_was(&identity("a"), raised.duration()).unwrap();
    let version = one.swap(&version, &anew).await.unwrap();
    let (read, _) = held(two.as_ref()).await;
    assert!(read.given() > read.epoch() && read.given() == anew.given(), "{} given", read.given());
    two.swap(&version, &read.elect(&identity("b"), &[].into()).unwrap()).await.unwrap();
    let (read, _) = held(one.as_ref()).await;
    assert_eq!((read.epoch(), read.given()), (Epoch(anew.given().0 + 1), Epoch(anew.given().0 + 1)));
}

pub(crate) async fn only_the_version_expected_is_replaced(stores: Handles) {
    let (one, two) = (&stores[0], &stores[1]);
    let first = first_lease();
    let blank = one.create().await.unwrap();
    assert_eq!(two.read().await, Ok(Stored::Blank(blank.clone())));
    assert_eq!(two.create().await, Err(SwapError::Conflict));
    let created = two.swap(&blank, &first).await.unwrap();
    assert_eq!(created.incarnation(), blank.incarnation());
    assert_eq!(one.create().await, Err(SwapError::Conflict));
    assert_eq!(one.swap(&blank, &elected(&first, "b")).await, Err(SwapError::Conflict), "only one is the first");
    let renewed = one.swap(&created, &first.renewed(&identity("a"), first.duration()).unwrap()).await.unwrap();
    assert_ne!(renewed, created, "a renewal is a change");
    assert_eq!(two.swap(&created, &elected(&first, "b")).await, Err(SwapError::Conflict));
    assert!(held(one.as_ref()).await.0.same_configuration(&first));
    two.swap(&renewed, &elected(&first, "b")).await.unwrap();
    assert_eq!(held(one.as_ref()).await.0.holder(), Some(&identity("b")));
}

/// Every contender elects itself again and again; each epoch has one winner, and no election is lost.
pub(crate) async fn of_many_contenders_one_wins_each_epoch(stores: Handles) {
    const ELECTIONS: u64 = 20;
    begin(stores[0].as_ref(), &first_lease()).await;
    let contenders = stores.into_iter().enumerate().map(|(i, store)| {
        tokio::spawn(async move {
            let me = ["a", "b", "c"][i % 3];
            let mut won = Vec::new();
            while (won.len() as u64) < ELECTIONS {
                let (lease, version) = held(store.as_ref()).await;
                let next = elected(&lease, me);
                match store.swap(&version, &next).await {
                    Ok(_) => won.push(next.epoch().0),
                    Err(SwapError::Conflict) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            won
        })
    });
    let mut epochs = Vec::new();
    for contender in contenders.collect::<Vec<_>>() {
        epochs.extend(within(contender).await.unwrap());
    }
    epochs.sort_unstable();
    let expected: Vec<u64> = (2..).take(epochs.len()).collect();
    assert_eq!(epochs, expected);
}

pub(crate) async fn a_watch_shows_the_present_and_each_change(stores: Handles) {
    let (writer, watcher) = (&stores[0], &stores[1]);
    let mut watch = watcher.watch();
    assert_eq!(within(watch.next()).await, Some(Ok(Stored::Absent)));
    let first = first_lease();
    let mut version = writer.create().await.unwrap();
    assert_eq!(within(watch.next()).await, Some(Ok(Stored::Blank(version.clone()))));
    for lease in [first.clone(), first.clone(), elected(&first, "b")] {
        version = writer.swap(&version, &lease).await.unwrap();
        let seen = loop {
            let (seen, at) = within(watch.next()).await.unwrap().unwrap().into_held().expect("it was not blank before");
            if at == version {
                break seen;
            }
        };
        assert!(seen.same_configuration(&lease), "{seen}");
    }
    let mut late = watcher.watch();
    let (seen, at) = within(late.next()).await.unwrap().unwrap().into_held().expect("there is a Lease");
    assert_eq!((seen.holder(), at), (Some(&identity("b")), version));
}
