//! Ports on loopback: the AMQP ports a person asked for, and free ones for the rest.
//!
//! A free port is looked for *below* the kernel's ephemeral range. Inside it an outgoing connection may take a dead
//! broker's port before its restart does, and a client that keeps dialling a closed port there can even connect to
//! itself. Finding a port free does not reserve it: a broker that then cannot bind says so and is started again.

use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Below are the ports that services are known by.
const LOWEST: u16 = 10_000;
/// Where Linux begins its ephemeral range unless told otherwise.
const USUAL_EPHEMERAL_START: u16 = 32_768;
/// A port in use is waited for so long: brokers of a supervisor that was killed a moment ago are on their way out.
const FREED_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Less room than this below the ephemeral range, and ports are taken from everywhere above [`LOWEST`] instead.
const LEAST_ROOM: u16 = 1_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error(
        "port {port} on 127.0.0.1 cannot be had for {broker} ({reason}): stop what listens there, or choose other ports with \
         --amqp-port or --tls"
    )]
    Taken { port: u16, broker: String, reason: String },
    #[error("--tls={first} would give {count} brokers ports that their plain AMQP has: choose others")]
    Twice { first: u16, count: u16 },
    #[error("--amqp-port {first} leaves no room for {count} brokers below port 65536")]
    PastTheEnd { first: u16, count: u16 },
    #[error("no {count} free ports in a row between {} and {} on 127.0.0.1", range.start, range.end)]
    NoneFree { count: u16, range: Range<u16> },
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The ports `first`, `first` + 1, …, one a broker, each seen to be free; `first` 0: wherever there are so many in a row.
pub(crate) fn amqp_ports(first: u16, brokers: &[String]) -> Result<Vec<u16>, PortError> {
    let count = u16::try_from(brokers.len()).unwrap_or(u16::MAX);
    if first == 0 {
        return free_ports(count);
    }
    let past_the_end = || PortError::PastTheEnd { first, count };
    let end = first.checked_add(count.saturating_sub(1)).ok_or_else(past_the_end)?;
    let deadline = Instant::now() + FREED_WITHIN;
    for (port, broker) in (first..=end).zip(brokers) {
        while let Err(error) = TcpListener::bind(loopback(port)) {
            if error.kind() != ErrorKind::AddrInUse || Instant::now() > deadline {
                return Err(PortError::Taken { port, broker: broker.clone(), reason: error.to_string() });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    Ok((first..=end).collect())
}

/// The same for TLS, beside those for plain AMQP.
pub(crate) fn amqps_ports(first: u16, brokers: &[String], plain: &[u16]) -> Result<Vec<u16>, PortError> {
    loop {
        let found = amqp_ports(first, brokers)?;
        if !found.iter().any(|port| plain.contains(port)) {
            return Ok(found);
        }
        if first != 0 {
            return Err(PortError::Twice { first, count: u16::try_from(brokers.len()).unwrap_or(u16::MAX) });
        }
    }
}

/// So many ports in a row that nobody listens on, from a random place on, so that two clusters started at once rarely meet.
pub(crate) fn free_ports(count: u16) -> Result<Vec<u16>, PortError> {
    let range = candidates(ephemeral_start());
    let room = (range.end - range.start).saturating_sub(count).max(1);
    let offset = RandomState::new().hash_one(count) % u64::from(room);
    let offset = u16::try_from(offset).expect("a remainder of a u16 is one");
    // Every place is looked at once at most.
    for step in 0..room {
        let start = range.start + (offset + step) % room;
        let listeners: Result<Vec<_>, _> =
            (start..start + count).map(|port| TcpListener::bind(loopback(port))).collect();
        if listeners.is_ok() {
            return Ok((start..start + count).collect());
        }
    }
    Err(PortError::NoneFree { count, range })
}

fn candidates(ephemeral_start: u16) -> Range<u16> {
    if ephemeral_start.saturating_sub(LOWEST) >= LEAST_ROOM { LOWEST..ephemeral_start } else { LOWEST..u16::MAX }
}

fn ephemeral_start() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let start = range.as_deref().and_then(|text| text.split_whitespace().next()).and_then(|word| word.parse().ok());
    start.unwrap_or(USUAL_EPHEMERAL_START)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("dev-{n}")).collect()
    }

    #[test]
    fn free_ports_are_free_in_a_row_and_below_the_ephemeral_range() {
        let ports = free_ports(6).unwrap();
        assert_eq!(ports.len(), 6);
        assert!(ports.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ports:?}");
        let allowed = candidates(ephemeral_start());
        assert!(ports.iter().all(|port| allowed.contains(port)), "{ports:?} in {allowed:?}");
    }

    #[test]
    fn without_room_below_the_ephemeral_range_there_are_candidates_all_the_same() {
        assert_eq!(candidates(32_768), 10_000..32_768);
        assert_eq!(candidates(1_024), 10_000..65_535);
    }

    #[test]
    fn a_taken_port_is_named_with_the_broker_that_wanted_it() {
        let taken = free_ports(2).unwrap()[1];
        let _listener = TcpListener::bind(loopback(taken)).unwrap();
        let error = amqp_ports(taken - 1, &names(2)).unwrap_err();
        assert!(
            matches!(&error, PortError::Taken { port, broker, .. } if *port == taken && broker == "dev-1"),
            "{error}"
        );
        assert!(error.to_string().contains("--amqp-port"), "{error}");
    }

    #[test]
    fn a_port_that_is_freed_in_a_moment_is_waited_for() {
        let port = free_ports(1).unwrap()[0];
        let listener = TcpListener::bind(loopback(port)).unwrap();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(LOOK_AGAIN * 3);
            drop(listener);
        });
        assert_eq!(amqp_ports(port, &names(1)), Ok(vec![port]));
        freed.join().unwrap();
    }

    #[test]
    fn ports_end_at_65535() {
        assert_eq!(amqp_ports(65_534, &names(3)), Err(PortError::PastTheEnd { first: 65_534, count: 3 }));
    }

    #[test]
    fn port_0_finds_some() {
        assert_eq!(amqp_ports(0, &names(3)).unwrap().len(), 3);
    }
}
