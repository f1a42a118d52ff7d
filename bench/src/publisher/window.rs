//! The messages of one publisher that wait for a confirm, by delivery tag, and those to be sent again. Pure; tags are
//! checked, since they come from the wire.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ledger::Sequence;

/// The window may span so many times its size when the broker answers out of order; then it waits for the oldest.
const MAX_SPAN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) sequence: Sequence,
    /// When the application first wanted it sent.
    pub(super) created: Duration,
    /// When this transmission was made.
    pub(super) sent: Duration,
}

#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    /// Delivery tag of the first entry.
    first_tag: u64,
    /// `None`: answered, behind one that is not. The first entry is never `None`.
    entries: VecDeque<Option<Sent>>,
    open: usize,
    /// Creation times of messages to send again, oldest first; at most `size`.
    again: VecDeque<Duration>,
}

impl Window {
    pub(super) fn new(size: usize) -> Self {
        Self { size: size.max(1), first_tag: 1, entries: VecDeque::new(), open: 0, again: VecDeque::new() }
    }

    /// How many more messages may be sent now.
    pub(super) fn room(&self) -> usize {
        let room = self.size.saturating_sub(self.open);
        room.min((self.size * MAX_SPAN).saturating_sub(self.entries.len()))
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.open
    }

    /// Nothing waits for a confirm or to be sent again.
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0 && self.again.is_empty()
    }

    /// The creation time of the next message to be sent again.
    pub(super) fn next_again(&mut self) -> Option<Duration> {
        self.again.pop_front()
    }

    pub(super) fn push(&mut self, sent: Sent) {
        self.entries.push_back(Some(sent));
        self.open += 1;
    }

    pub(super) fn send_again(&mut self, created: Duration) {
        self.again.push_back(created);
    }

    /// The broker answered for `tag`, or for all up to it. Calls `each` for every message that this settles.
    pub(super) fn settle(&mut self, tag: u64, multiple: bool, mut each: impl FnMut(Sent)) {
        let Some(offset) = tag.checked_sub(self.first_tag).and_then(|offset| usize::try_from(offset).ok()) else {
            return;
        };
        if offset >= self.entries.len() {
            return;
        }
        let from = if multiple { 0 } else { offset };
        for entry in self.entries.range_mut(from..=offset) {
            if let Some(sent) = entry.take() {
                self.open -= 1;
                each(sent);
            }
        }
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first_tag += 1;
        }
    }

    /// The connection is gone: what waited goes to be sent again, before what already did. Returns what was abandoned.
    pub(super) fn lose(&mut self) -> Vec<Sequence> {
        let lost: Vec<Sent> = self.entries.drain(..).flatten().collect();
        lost.iter().rev().for_each(|sent| self.again.push_front(sent.created));
        self.first_tag = 1;
        self.open = 0;
        lost.into_iter().map(|sent| sent.sequence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn window(size: usize, sent: u64) -> Window {
        let mut window = Window::new(size);
        (0..sent).for_each(|n| window.push(Sent { sequence: Sequence(n), created: at(n), sent: at(n) }));
        window
    }

    fn settled(window: &mut Window, tag: u64, multiple: bool) -> Vec<u64> {
        let mut settled = Vec::new();
        window.settle(tag, multiple, |sent| settled.push(sent.sequence.0));
        settled
    }

    #[test]
    fn confirms_one_by_one_and_many_at_once() {
        let mut window = window(5, 5);
        assert_eq!(window.room(), 0);
        assert_eq!(settled(&mut window, 2, false), [1]);
        assert_eq!(settled(&mut window, 4, true), [0, 2, 3]);
        assert_eq!(window.room(), 4);
        assert_eq!(settled(&mut window, 5, true), [4]);
        assert!(window.is_idle());
    }

    #[test]
    fn a_tag_that_was_never_sent_or_is_settled_changes_nothing() {
        let mut window = window(5, 2);
        assert_eq!(settled(&mut window, 1, false), [0]);
        for tag in [0, 1, 3, u64::MAX] {
            assert_eq!(settled(&mut window, tag, true), [] as [u64; 0], "{tag}");
        }
        assert_eq!(window.unconfirmed(), 1);
    }

    #[test]
    fn an_old_unanswered_message_stops_the_window_from_growing_for_ever() {
        let mut window = window(2, 0);
        let mut sent = 0;
        while window.room() > 0 {
            sent += 1;
            window.push(Sent { sequence: Sequence(sent), created: at(0), sent: at(0) });
            if sent > 1 {
                window.settle(sent, false, |_| ());
            }
        }
        assert_eq!(sent as usize, 2 * MAX_SPAN);
        assert_eq!(window.unconfirmed(), 1);
    }

    #[test]
    fn a_loss_sends_again_in_the_old_order() {
        let mut window = window(5, 3);
        window.settle(2, false, |_| ());
        window.send_again(at(9));
        assert_eq!(window.lose(), [Sequence(0), Sequence(2)]);
        assert_eq!([window.next_again(), window.next_again(), window.next_again()], [0, 2, 9].map(|ms| Some(at(ms))));
        window.push(Sent { sequence: Sequence(3), created: at(3), sent: at(3) });
        assert_eq!(settled(&mut window, 1, false), [3], "tags begin anew on the next connection");
    }
}
