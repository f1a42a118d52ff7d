//! What logins may cost: a refused one is answered late, passwords are hashed a few at a time so that nobody else is held up,
//! and who fails again and again fills no log and stands in a line of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::peer::Peer;

/// Failures of one address that are told, in each [`WINDOW`].
const TOLD: u32 = 5;

const WINDOW: Duration = Duration::from_secs(60);

/// Addresses that are counted apart; those beyond share one count.
const MAX_ADDRESSES: usize = 1024;

/// Counts failures by address, and says which of them are to be told.
#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<Option<IpAddr>, Count>>);

struct Count {
    since: Instant,
    failures: u32,
}

/// What to write down about a failure.
#[derive(Debug, PartialEq, Eq)]
enum Telling {
    Tell,
    /// The last for now: what follows is counted.
    TellAsLast,
    /// So many were not told before.
    TellAfter(u32),
    Not,
}

impl Telling {
    /// What to say behind it; `None`: nothing is to be told.
    fn remark(self) -> Option<String> {
        match self {
            Self::Tell => Some(String::new()),
            Self::TellAsLast => Some("; others from there are only counted for a minute".into()),
            Self::TellAfter(untold) => Some(format!("; {untold} before it were only counted")),
            Self::Not => None,
        }
    }
}

impl Failures {
    /// Writes down what came to nothing, within bounds.
    pub(super) fn tell(&self, peer: &Peer, what: &str) {
        if let Some(remark) = self.note(peer.ip, Instant::now()).remark() {
            tracing::info!(%peer, "{what}{remark}");
        }
    }

    fn note(&self, ip: Option<IpAddr>, now: Instant) -> Telling {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_ADDRESSES && !counts.contains_key(&ip) {
            counts.retain(|_, count| now.duration_since(count.since) < WINDOW);
        }
        let ip = if counts.len() >= MAX_ADDRESSES && !counts.contains_key(&ip) { None } else { ip };
        let count = counts.entry(ip).or_insert(Count { since: now, failures: 0 });
        if now.duration_since(count.since) >= WINDOW {
            let untold = count.failures.saturating_sub(TOLD);
            *count = Count { since: now, failures: 1 };
            return if untold > 0 { Telling::TellAfter(untold) } else { Telling::Tell };
        }
        count.failures = count.failures.saturating_add(1);
        match count.failures {
            ..TOLD => Telling::Tell,
            TOLD => Telling::TellAsLast,
            _ => Telling::Not,
        }
    }

    /// It has failed so often that it is not told any more.
    fn is_notorious(&self, ip: Option<IpAddr>, now: Instant) -> bool {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = |count: &Count| count.failures >= TOLD && now.duration_since(count.since) < WINDOW;
        counts.get(&ip).is_some_and(fails)
    }
}

/// Characters of a name that is refused.
const SHOWN_NAME: usize = 64;

pub(crate) struct Logins {
    failures: Failures,
    delay: Duration,
    /// A hash takes tens of milliseconds of a processor, and 19 MiB.
    hashing: Semaphore,
    notorious: Semaphore,
}

/// The right to hash one password.
pub(super) struct HashingTurn<'a> {
    _own: Option<SemaphorePermit<'a>>,
    _turn: Option<SemaphorePermit<'a>>,
}

impl Logins {
    pub(crate) fn new(delay: Duration) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            failures: Failures::default(),
            delay,
            hashing: Semaphore::new((processors / 2).max(1)),
            notorious: Semaphore::new(1),
        }
    }

    /// First come, first served; but of those that have failed often at most one is in the line.
    pub(super) async fn turn(&self, peer: &Peer) -> HashingTurn<'_> {
        let own = match self.failures.is_notorious(peer.ip, Instant::now()) {
            true => self.notorious.acquire().await.ok(),
            false => None,
        };
        HashingTurn { _own: own, _turn: self.hashing.acquire().await.ok() }
    }

    /// Writes it down, within bounds, and waits for as long as the answer has to.
    pub(super) async fn refuse(&self, peer: &Peer, user: &str, reason: &str) {
        if let Some(remark) = self.failures.note(peer.ip, Instant::now()).remark() {
            // A stranger's words: escaped, and not at their length.
            let user: String = user.chars().take(SHOWN_NAME).collect();
            tracing::warn!(%peer, ?user, "login refused: {reason}{remark}");
        }
        tokio::time::sleep(self.delay).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn an_address_is_told_of_a_few_times_a_minute() {
        let (failures, start) = (Failures::default(), Instant::now());
        let told: Vec<_> = (0..1000).map(|_| failures.note(ip(1), start)).collect();
        assert_eq!(told.iter().filter(|telling| **telling != Telling::Not).count(), TOLD as usize);
        assert_eq!(told[TOLD as usize - 1], Telling::TellAsLast);
        assert_eq!(failures.note(ip(2), start), Telling::Tell, "another is not concerned");
        assert_eq!(failures.note(ip(1), start + WINDOW), Telling::TellAfter(995));
        assert_eq!(failures.note(ip(1), start + WINDOW), Telling::Tell);
        assert_eq!(failures.note(ip(2), start + WINDOW), Telling::Tell);
    }

    #[test]
    fn addresses_without_end_are_counted_within_bounds() {
        let (failures, start) = (Failures::default(), Instant::now());
        let told = (0..100_000u32).filter(|number| {
            let ip = IpAddr::from(number.to_be_bytes());
            failures.note(Some(ip), start) != Telling::Not
        });
        assert_eq!(told.count(), MAX_ADDRESSES + TOLD as usize);
        assert!(failures.0.lock().unwrap().len() <= MAX_ADDRESSES + 1);
        // A minute later they are forgotten.
        failures.note(ip(1), start + WINDOW);
        assert_eq!(failures.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn who_has_failed_often_is_known_for_a_minute() {
        let (failures, start) = (Failures::default(), Instant::now());
        (1..TOLD).for_each(|_| _ = failures.note(ip(1), start));
        assert!(!failures.is_notorious(ip(1), start));
        failures.note(ip(1), start);
        assert!(failures.is_notorious(ip(1), start));
        assert!(!failures.is_notorious(ip(2), start));
        assert!(!failures.is_notorious(ip(1), start + WINDOW));
    }

    /// Ten wrong guesses at once from one address, and then somebody else: only one of the ten is before him.
    #[tokio::test]
    async fn who_fails_often_is_no_queue_for_others() {
        let logins = Logins { hashing: Semaphore::new(1), ..Logins::new(Duration::ZERO) };
        let peer = |last| Peer::plain((ip(last).unwrap(), 4711).into());
        (0..TOLD).for_each(|_| _ = logins.failures.note(ip(1), Instant::now()));
        let first = logins.turn(&peer(3)).await;
        let served = Mutex::new(Vec::new());
        let login = async |last| {
            let turn = logins.turn(&peer(last)).await;
            served.lock().unwrap().push(last);
            drop(turn);
        };
        let guesses = futures::future::join_all((0..10).map(|_| login(1)));
        futures::future::join3(guesses, login(2), async { drop(first) }).await;
        let served = served.into_inner().unwrap();
        assert_eq!(served.iter().position(|last| *last == 2), Some(1), "{served:?}");
    }
}
