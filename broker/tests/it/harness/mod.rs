//! What the tests stand on: real broker processes with their ports, certificates and directories, a small AMQP client, and
//! waiting for conditions. Everything that is started ends with the test, however it ends.

mod broker;
mod client;
mod cluster;
mod command_line;
mod control;
mod ledger;
mod pki;
mod ports;
pub(crate) mod raw;
mod small_disk;
pub(crate) mod tls;

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use broker::{Broker, Settings, Single, loopback};
pub(crate) use client::{CHANNEL, Client, Refused, short};
pub(crate) use cluster::Cluster;
pub(crate) use ledger::{Consumer, Load, drain_numbers};
pub(crate) use pki::write_certificates;
pub(crate) use ports::free_ports;
pub(crate) use small_disk::SmallDisk;
pub(crate) use tls::Stream;

/// Every wait ends within this, well or badly. Far above what anything here takes, for machines that are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks until there is something to see.
#[track_caller]
pub(crate) fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "still not after {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[track_caller]
pub(crate) fn await_true(what: &str, mut look: impl FnMut() -> bool) {
    await_some(what, || look().then_some(()));
}

/// Broker processes that may run at once: more of them on a small machine would only measure the machine.
const PLACES: usize = 5;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// The right to run so many brokers; tests wait for it.
#[derive(Debug)]
pub(crate) struct Places(usize);

impl Places {
    pub(crate) fn take(count: usize) -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            GIVEN_BACK.wait_while(taken, |taken| *taken + count > PLACES).unwrap_or_else(PoisonError::into_inner);
        *taken += count;
        Self(count)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        GIVEN_BACK.notify_all();
    }
}
