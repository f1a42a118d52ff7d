//! What became of every message of a run: the handle that publishers, consumers and whoever kills brokers share. The
//! bookkeeping itself is in [`book`]; here are the clock, the lock and the waiting.

mod book;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::Serialize;

use book::Book;
pub use book::MAX_MESSAGES;
pub(crate) use book::{Arrival, Fate};

/// A publisher, for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProducerId(pub u32);

/// A message of a producer, counted from 0 in transmissions: what is sent again is another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Sequence(pub u64);

/// A consumer's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// By default an acknowledgement counts as processed once the broker was heard so long after it. Acknowledgements have
/// no reply; a broker answers for what is older than this.
const ACK_GRACE: Duration = Duration::from_millis(250);
/// How often a waiting caller looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Cloning gives another handle of the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    run: u64,
    origin: Instant,
    /// Length of the book's list of failures, readable without the lock.
    failures: AtomicUsize,
    book: Mutex<Book>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    pub fn new() -> Self {
        Self::with_ack_grace(ACK_GRACE)
    }

    /// `grace`: how long after an acknowledgement a broker must still have been heard for it to count as processed.
    pub fn with_ack_grace(grace: Duration) -> Self {
        Self(Arc::new(Shared {
            run: rand::random(),
            origin: Instant::now(),
            failures: AtomicUsize::new(0),
            book: Mutex::new(Book::new(grace)),
        }))
    }

    /// To be called right after a kill, a freeze or a cut: publishers measure their recovery from `at`, and what was
    /// acknowledged after it (or shortly before) on a connection that was then lost may come again.
    pub fn note_failure(&self, at: Instant) {
        let at = at.saturating_duration_since(self.0.origin);
        let mut book = self.book();
        book.note_failure(at);
        self.0.failures.store(book.failures().len(), Ordering::Release);
    }

    /// Confirmed, and not delivered yet.
    pub fn undelivered(&self) -> u64 {
        self.book().undelivered()
    }

    /// Waits until everything that was confirmed is delivered; `false` if that took too long.
    pub async fn drained(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.undelivered() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        true
    }

    /// The closing table. Sensible once publishers have stopped and the queue is drained.
    pub fn account(&self) -> Account {
        self.book().account()
    }

    pub(crate) fn run(&self) -> u64 {
        self.0.run
    }

    /// Since the run's origin: the time of all stamps and reports.
    pub(crate) fn now(&self) -> Duration {
        self.0.origin.elapsed()
    }

    /// As the reports' times are given.
    pub fn time_of(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.0.origin)
    }

    pub(crate) fn failures_noted(&self) -> usize {
        self.0.failures.load(Ordering::Acquire)
    }

    pub(crate) fn failures_from(&self, first: usize) -> Vec<Duration> {
        self.book().failures().get(first..).unwrap_or_default().to_vec()
    }

    /// One lock for a batch of entries.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().expect("nobody panics while writing the ledger")
    }
}

/// Totals of a run, in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    pub sent: u64,
    pub confirmed: u64,
    /// Refused by the broker, and sent again as another message.
    pub nacked: u64,
    /// Neither confirmed nor refused when their connection was lost, and sent again as other messages.
    pub abandoned: u64,
    /// Delivered at least once.
    pub delivered: u64,
    /// Confirmed and never delivered.
    pub lost: u64,
    /// Deliveries of a message whose earlier acknowledgement the broker had certainly taken, or which it still had out.
    pub duplicated: u64,
    /// Second deliveries of messages whose acknowledgement may not have been taken before a failure.
    pub redelivered: u64,
    /// Sent again by the publisher because no confirm had come, although they had arrived.
    pub resent: u64,
    /// Second deliveries that did not say `redelivered`.
    pub unflagged: u64,
    /// Deliveries of messages that no publisher of this run sent.
    pub foreign: u64,
    pub lost_examples: Vec<(ProducerId, Sequence)>,
    pub duplicated_examples: Vec<(ProducerId, Sequence)>,
}

impl Account {
    /// What was confirmed is there, once.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicated == 0
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |what: &str, count: u64, note: &str| writeln!(f, "  {what:<12}{count:>12}  {note}");
        row("sent", self.sent, "")?;
        row("confirmed", self.confirmed, "")?;
        row("delivered", self.delivered, "")?;
        row("lost", self.lost, "confirmed, never delivered")?;
        row("duplicated", self.duplicated, "delivered again after an acknowledgement that was taken")?;
        row("redelivered", self.redelivered, "delivered again, unacknowledged at a failure")?;
        row("abandoned", self.abandoned, "unconfirmed at a failure, sent again as new messages")?;
        row("resent", self.resent, "of these, had arrived all the same")?;
        if self.nacked > 0 {
            row("nacked", self.nacked, "refused, sent again as new messages")?;
        }
        row("unflagged", self.unflagged, "second deliveries that did not say so")?;
        if self.foreign > 0 {
            row("foreign", self.foreign, "delivered, but not of this run")?;
        }
        Ok(())
    }
}
