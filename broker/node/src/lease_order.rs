//! Which of the Leases that this process has seen is the present one. What is seen of a Lease may come late, after the next was
//! seen, and nothing in it tells. That matters in one place: whoever has said that it sees a blank Lease takes no role by one
//! from before it (rule 7), whose epoch may have been given a second time. Then a read tells that begins after both.
//!
//! Knows neither roles nor elections, and reads nothing itself.

use std::time::Duration;

use understudy_election::{Incarnation, Stored, Version};
use understudy_record::Epoch;
use understudy_replication::LeaseAnswer;

/// After a read that told nothing, the pause before the next, as for the keeper's requests.
const RETRY: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct LeaseOrder {
    blanks: Blanks,
    read: Option<Read>,
    /// The last one told nothing.
    again: bool,
    not_before: Duration,
}

/// The blank Leases seen since the process began, or since a read told which one is there.
#[derive(Debug, Default)]
enum Blanks {
    #[default]
    None,
    One(Incarnation),
    Several,
}

/// On its way.
#[derive(Debug)]
struct Read {
    epoch: Epoch,
    /// A blank Lease was seen meanwhile: it may be the newer one.
    overtaken: bool,
}

impl LeaseOrder {
    pub(crate) fn handle_seen(&mut self, seen: &Stored) {
        let Some(incarnation) = seen.blank() else { return };
        if let Some(read) = &mut self.read {
            read.overtaken = true;
        }
        self.blanks = match std::mem::take(&mut self.blanks) {
            Blanks::None => Blanks::One(incarnation.clone()),
            Blanks::One(known) if known == *incarnation => Blanks::One(known),
            Blanks::One(_) | Blanks::Several => Blanks::Several,
        };
    }

    /// Whether no blank Lease was seen that may have taken the place of this one.
    pub(crate) fn is_present(&self, version: &Version) -> bool {
        match &self.blanks {
            Blanks::None => true,
            Blanks::One(known) => known == version.incarnation(),
            Blanks::Several => false,
        }
    }

    /// Whether the Lease is to be read now, for the role of that epoch. Only one read is on its way at a time.
    pub(crate) fn begin_read(&mut self, now: Duration, epoch: Epoch) -> bool {
        let may_begin = self.read.is_none() && now >= self.not_before;
        if may_begin {
            self.read = Some(Read { epoch, overtaken: false });
            self.not_before = now + RETRY;
        }
        may_begin
    }

    /// Whether it is time to look again at who is to read, after a read that told nothing. Once.
    pub(crate) fn is_read_due(&mut self, now: Duration) -> bool {
        now >= self.not_before && std::mem::take(&mut self.again)
    }

    /// The Lease as it was after everything that was seen before; `None` if the answer does not tell, or is to another request.
    pub(crate) fn handle_answer(&mut self, epoch: Epoch, answer: LeaseAnswer) -> Option<Stored> {
        let read = self.read.take_if(|read| read.epoch == epoch)?;
        match answer {
            LeaseAnswer::Read(stored) if !read.overtaken => {
                if let Some(version) = stored.version() {
                    self.blanks = Blanks::One(version.incarnation().clone());
                }
                Some(stored)
            }
            _ => {
                self.again = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch(3);

    fn version(incarnation: &str) -> Version {
        Version::new(Incarnation::new(incarnation), "7")
    }

    fn blank(incarnation: &str) -> Stored {
        Stored::Blank(version(incarnation))
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The Leases 1 and then 2 were seen when they were blank.
    fn of_two() -> LeaseOrder {
        let mut order = LeaseOrder::default();
        assert!(order.is_present(&version("1")), "nothing else was seen");
        order.handle_seen(&blank("1"));
        order.handle_seen(&Stored::Absent);
        assert!(order.is_present(&version("1")) && !order.is_present(&version("0")));
        order.handle_seen(&blank("2"));
        order
    }

    #[test]
    fn of_two_leases_a_read_tells_which_is_there() {
        let mut order = of_two();
        assert!(!order.is_present(&version("1")) && !order.is_present(&version("2")), "either may have come late");
        assert!(order.begin_read(at(0), EPOCH));
        assert!(!order.begin_read(at(1_000), EPOCH), "one at a time");
        assert_eq!(order.handle_answer(Epoch(2), LeaseAnswer::Read(blank("2"))), None, "of another request");
        assert_eq!(order.handle_answer(EPOCH, LeaseAnswer::Read(blank("2"))), Some(blank("2")));
        assert!(order.is_present(&version("2")) && !order.is_present(&version("1")));
    }

    #[test]
    fn a_read_that_a_blank_lease_overtook_tells_nothing() {
        let mut order = of_two();
        assert!(order.begin_read(at(0), EPOCH));
        order.handle_seen(&blank("3"));
        assert_eq!(order.handle_answer(EPOCH, LeaseAnswer::Read(blank("2"))), None);
        assert!(!order.is_present(&version("2")));
    }

    #[test]
    fn a_read_that_failed_is_tried_again_after_a_pause() {
        let mut order = of_two();
        assert!(order.begin_read(at(0), EPOCH));
        assert_eq!(order.handle_answer(EPOCH, LeaseAnswer::Unknown("timeout".into())), None);
        assert!(!order.is_read_due(at(100)) && !order.begin_read(at(100), EPOCH));
        assert!(order.is_read_due(at(300)) && order.begin_read(at(300), EPOCH));
        assert!(!order.is_read_due(at(600)), "it is on its way");
    }
}
