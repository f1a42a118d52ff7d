//! Each constructor of a Lease: what it keeps, what it changes, what it refuses.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_election::{
    Lease, LeaseParts, MAX_MEMBERS, MalformedLease, NotElectable, NotHolder, RECREATION_EPOCH_GAP,
};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Identity, Member, ProcessId, ReplicaName, StoreId};

const DURATION: Duration = Duration::from_secs(5);

fn identity(name: &str, store: u128, process: u64) -> Identity {
    Identity { name: ReplicaName::new(name), store: StoreId(store), process: ProcessId(process) }
}

fn set(members: &[&Identity], with_process: bool) -> BTreeSet<Member> {
    members.iter().map(|identity| identity.member(with_process)).collect()
}

#[test]
fn an_election_keeps_the_candidate_and_the_members_reached() {
    let (a, b, c) = (identity("a", 1, 1), identity("b", 2, 1), identity("c", 3, 1));
    let lease = Lease::bootstrap(&a, set(&[&a, &b, &c], false), DURATION).unwrap();
    let stranger = identity("d", 4, 1);
    for (reached, expected) in [
        (vec![], vec![&b]),
        (vec![c.clone()], vec![&b, &c]),
        (vec![a.clone(), b.clone(), c.clone(), stranger.clone()], vec![&a, &b, &c]),
        (vec![identity("c", 9, 1)], vec![&b]),
    ] {
        let elected = lease.elect(&b, &reached.into_iter().collect()).unwrap();
        assert_eq!((elected.holder(), elected.epoch()), (Some(&b), Epoch(2)));
        assert_eq!(*elected.in_sync(), set(&expected, false));
    }
    for outsider in [stranger, identity("b", 9, 1)] {
        let refused = lease.elect(&outsider, &BTreeSet::new());
        assert_eq!(refused, Err(NotElectable::OutsideSet { candidate: outsider }));
    }
}

/// A restart keeps a store, and loses a memory.
#[test]
fn an_election_takes_a_restarted_process_for_the_member_it_was_only_if_the_set_names_stores() {
    let (a, b) = (identity("a", 1, 1), identity("b", 2, 1));
    let restarted = identity("b", 2, 2);
    let durable = Lease::bootstrap(&a, set(&[&a, &b], false), DURATION).unwrap();
    assert_eq!(durable.elect(&restarted, &BTreeSet::new()).unwrap().holder(), Some(&restarted));
    let in_memory = Lease::bootstrap(&a, set(&[&a, &b], true), DURATION).unwrap();
    assert!(in_memory.elect(&restarted, &BTreeSet::new()).is_err());
    let elected = in_memory.elect(&a, &[restarted].into()).unwrap();
    assert_eq!(*elected.in_sync(), set(&[&a], true));
}

#[test]
fn only_the_holder_changes_the_set_and_renews() {
    let (a, b) = (identity("a", 1, 1), identity("b", 2, 1));
    let lease = Lease::bootstrap(&a, set(&[&a, &b], false), DURATION).unwrap();
    let smaller = lease.with_set(&a, set(&[&a], false)).unwrap();
    assert_eq!((smaller.holder(), smaller.epoch()), (Some(&a), Epoch(1)));
    let renewed = smaller.renewed(&a, DURATION * 2).unwrap();
    assert!(renewed.same_configuration(&smaller) && !renewed.same_configuration(&lease));
    assert_eq!(renewed.duration(), DURATION * 2);
    for other in [b.clone(), identity("a", 1, 2), identity("a", 9, 1)] {
        let refused = NotHolder::HeldByAnother { claimant: other.clone(), holder: Some(a.clone()), epoch: Epoch(1) };
        assert_eq!(lease.with_set(&other, set(&[&a], false)), Err(refused.clone()));
        assert_eq!(lease.renewed(&other, DURATION), Err(refused));
    }
    let without_itself = lease.with_set(&a, set(&[&b], false));
    assert_eq!(without_itself, Err(NotHolder::Malformed(MalformedLease::HolderOutsideSet { holder: a })));
}

#[test]
fn a_living_primary_creates_the_lease_as_it_was() {
    let (a, b) = (identity("a", 1, 1), identity("b", 2, 1));
    let lease = Lease::bootstrap(&a, set(&[&a, &b], false), DURATION).unwrap().elect(&b, &[a.clone()].into()).unwrap();
    let again = lease.as_it_was(&b, DURATION).unwrap();
    assert!(again.same_configuration(&lease));
    assert!(lease.as_it_was(&a, DURATION).is_err());
    // An election in the one that was deleted may be unheard of: its epoch is not given again.
    assert_eq!((lease.given(), again.given()), (Epoch(2), Epoch(2 + RECREATION_EPOCH_GAP)));
    let renewed = again.renewed(&b, DURATION).unwrap();
    let elected = renewed.elect(&a, &BTreeSet::new()).unwrap();
    assert_eq!((elected.epoch(), elected.given()), (Epoch(103), Epoch(103)));
    assert_eq!(elected.as_it_was(&a, DURATION).unwrap().given(), Epoch(203));
}

/// Every way from one Lease to the next, a few steps deep: the version goes up by [`Lease::raised`] alone, and never down.
#[test]
fn no_constructor_lowers_the_version_of_the_cluster() {
    let all = [identity("a", 1, 1), identity("b", 2, 1), identity("c", 3, 1)];
    let everybody = || all.iter().cloned().collect::<BTreeSet<_>>();
    let first = Lease::bootstrap(&all[0], set(&[&all[0], &all[1], &all[2]], false), DURATION).unwrap();
    assert_eq!(first.cluster_version(), ClusterVersion::FIRST);
    let mut leases = vec![first];
    let mut steps = 0;
    for _ in 0..5 {
        let mut next = Vec::new();
        for lease in &leases {
            let version = lease.cluster_version();
            let holder = lease.holder().unwrap().clone();
            let same = [
                lease.elect(&all[1], &everybody()).unwrap(),
                lease.elect(&holder, &everybody()).unwrap(),
                lease.with_set(&holder, lease.in_sync().clone()).unwrap(),
                lease.renewed(&holder, DURATION).unwrap(),
                lease.as_it_was(&holder, DURATION).unwrap(),
            ];
            for derived in same {
                assert_eq!(derived.cluster_version(), version, "{lease} became {derived}");
                next.push(derived);
            }
            for to in 1..=3 {
                let raised = lease.raised(&holder, ClusterVersion(to)).unwrap();
                assert_eq!(raised.cluster_version(), version.max(ClusterVersion(to)), "{lease}");
                assert!(raised.same_configuration(lease), "{lease} became {raised}");
                next.push(raised);
            }
            steps += 8;
        }
        next.sort_by_key(|lease| (lease.epoch(), lease.holder().cloned(), lease.cluster_version()));
        next.dedup();
        leases = next;
    }
    assert!(steps > 200, "{steps}");
    let stranger = leases[0].raised(&identity("a", 1, 2), ClusterVersion(3));
    assert!(matches!(stranger, Err(NotHolder::HeldByAnother { .. })), "{stranger:?}");
}

#[test]
fn what_is_no_lease_is_refused() {
    let (a, b) = (identity("a", 1, 1), identity("b", 2, 1));
    let good = LeaseParts {
        holder: Some(a.clone()),
        epoch: Epoch(1),
        given: None,
        in_sync: set(&[&a, &b], false),
        duration: DURATION,
        cluster_version: ClusterVersion::FIRST,
        renewed: None,
    };
    assert!(Lease::from_parts(good.clone()).is_ok());
    assert!(Lease::from_parts(LeaseParts { holder: None, ..good.clone() }).is_ok());
    let crowd: Vec<Identity> = (0..=MAX_MEMBERS).map(|i| identity(&format!("a{i}"), 1, 1)).collect();
    let crowd = set(&crowd.iter().collect::<Vec<_>>(), false);
    let twice = [a.member(false), identity("a", 9, 1).member(false)].into();
    for (parts, expected) in [
        (LeaseParts { in_sync: BTreeSet::new(), ..good.clone() }, MalformedLease::NoMembers),
        (LeaseParts { in_sync: crowd, ..good.clone() }, MalformedLease::TooManyMembers { count: MAX_MEMBERS + 1 }),
        (LeaseParts { in_sync: twice, ..good.clone() }, MalformedLease::NameTwice { name: a.name.clone() }),
        (
            LeaseParts { in_sync: set(&[&b], false), ..good.clone() },
            MalformedLease::HolderOutsideSet { holder: a.clone() },
        ),
        (LeaseParts { epoch: Epoch(0), ..good.clone() }, MalformedLease::NoEpoch),
        (
            LeaseParts { epoch: Epoch(2), given: Some(Epoch(1)), ..good.clone() },
            MalformedLease::EpochNotGiven { epoch: Epoch(2), given: Epoch(1) },
        ),
        (LeaseParts { cluster_version: ClusterVersion(0), ..good.clone() }, MalformedLease::NoVersion),
        (LeaseParts { duration: Duration::ZERO, ..good.clone() }, MalformedLease::Duration(Duration::ZERO)),
        (LeaseParts { duration: Duration::MAX, ..good }, MalformedLease::Duration(Duration::MAX)),
    ] {
        assert_eq!(Lease::from_parts(parts), Err(expected));
    }
}
