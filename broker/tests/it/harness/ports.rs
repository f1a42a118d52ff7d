//! Free ports on loopback. They are looked for below the kernel's ephemeral range, where no outgoing connection takes a
//! dead broker's port before its restart does.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

const RANGE: Range<u16> = 12_000..30_000;

/// Handed out in this process already.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    let start = rand::random_range(RANGE);
    let mut candidates = (start..RANGE.end).chain(RANGE.start..start);
    std::array::from_fn(|_| {
        let free = |port: &u16| !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = candidates.find(free).expect("a free port on loopback");
        given.insert(port);
        port
    })
}
