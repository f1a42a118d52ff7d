//! Which pods must not go though the spec has fewer: as long as the primary is among them, or nobody who stays holds every
//! confirmed message. Pure, but for the last step.

use std::collections::BTreeSet;

use understudy_record::ReplicaName;

use super::task::Task;

/// Nobody knows yet.
pub(super) const UNKNOWN: u8 = u8::MAX;

/// How many pods there must be at least. `staying`: those of the spec; `existing`: pods that exist; `in_sync`: those that do
/// their work in the set; `holder`: the Lease's.
fn pods_to_keep(
    staying: &BTreeSet<ReplicaName>,
    existing: u8,
    in_sync: &BTreeSet<ReplicaName>,
    holder: Option<&ReplicaName>,
) -> u8 {
    let wanted = u8::try_from(staying.len()).unwrap_or(UNKNOWN - 1);
    // No primary: whoever is to be one may be among those that would go.
    let role_stays = holder.is_some_and(|holder| staying.contains(holder) && in_sync.contains(holder));
    if existing <= wanted || role_stays { wanted } else { existing }
}

impl Task {
    /// The primary of the spec's pods in force holds every confirmed message, and it alone has to: the set shrinks by swaps of
    /// its own when others go. So a scale-down waits for no more than the role.
    pub(super) fn hold_pods(&mut self) {
        if !self.pods_listed || self.held().is_none() {
            return;
        }
        let (cluster, lease, now) = (self.cluster(), self.held(), self.now());
        let staying: BTreeSet<ReplicaName> = cluster.pod_names().map(|name| ReplicaName::new(&name)).collect();
        let works = |name: &ReplicaName| {
            lease.zip(self.sight.replica(name)).is_some_and(|(lease, seen)| seen.works_in_set(lease, now))
        };
        let in_sync = staying.iter().filter(|name| works(name)).cloned().collect();
        // The highest ordinal counts: a StatefulSet takes pods away from the end.
        let ordinals = self.pods.keys().filter_map(|name| name.as_str().rsplit_once('-')?.1.parse::<u8>().ok());
        let existing = ordinals.max().map_or(0, |last| last.saturating_add(1));
        let keep = pods_to_keep(&staying, existing, &in_sync, lease.and_then(|lease| lease.holder()).map(|h| &h.name));
        self.hold.send_if_modified(|known| std::mem::replace(known, keep) != keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_moves_off_before_a_pod_goes() {
        let names = |ordinals: &[u8]| {
            ordinals.iter().map(|n| ReplicaName::new(&format!("orders-{n}"))).collect::<BTreeSet<_>>()
        };
        let name = |ordinal: u8| ReplicaName::new(&format!("orders-{ordinal}"));
        let keep = |staying: &[u8], existing, in_sync: &[u8], holder: Option<u8>| {
            pods_to_keep(&names(staying), existing, &names(in_sync), holder.map(name).as_ref())
        };
        assert_eq!(keep(&[0, 1], 3, &[0, 1], Some(0)), 2);
        assert_eq!(keep(&[0, 1], 3, &[0, 1], Some(2)), 3, "the primary would go");
        assert_eq!(keep(&[0, 1], 3, &[], Some(0)), 3, "the primary is not heard");
        assert_eq!(keep(&[0, 1], 3, &[0], None), 3, "nobody knows who will be the primary");
        assert_eq!(keep(&[0, 1, 2], 2, &[0, 1], Some(1)), 3, "it grows");
        assert_eq!(keep(&[0, 1, 2], 3, &[], None), 3);
    }
}
