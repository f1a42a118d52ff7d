//! The first bytes of every message of a load: which run, which producer, which message, and when it was made. The rest
//! of a message is filler. The stamp is this crate's own and means nothing to a broker.

use std::time::Duration;

use understudy_record::Body;

use crate::ledger::{ProducerId, Sequence};

/// Length of a stamp, and so of the smallest message.
pub const MIN_MESSAGE_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"USB1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Messages that an earlier run left in a queue carry another number.
    pub(crate) run: u64,
    pub(crate) producer: ProducerId,
    pub(crate) sequence: Sequence,
    /// Since the run's origin: when the application first wanted this message sent.
    pub(crate) created: Duration,
}

impl Stamp {
    pub(crate) fn encode(&self) -> [u8; MIN_MESSAGE_BYTES] {
        let mut bytes = [0; MIN_MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.producer.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.run.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.0.to_be_bytes());
        let nanos = u64::try_from(self.created.as_nanos()).unwrap_or(u64::MAX);
        bytes[24..].copy_from_slice(&nanos.to_be_bytes());
        bytes
    }

    /// `None` if the message is not of a load.
    pub(crate) fn decode(body: &Body) -> Option<Self> {
        let mut bytes = [0; MIN_MESSAGE_BYTES];
        let mut filled = 0;
        for piece in body.pieces() {
            let count = piece.len().min(MIN_MESSAGE_BYTES - filled);
            bytes[filled..filled + count].copy_from_slice(&piece[..count]);
            filled += count;
        }
        if filled < MIN_MESSAGE_BYTES || bytes[..4] != MAGIC {
            return None;
        }
        let number = |at: usize| bytes[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Some(Self {
            run: number(8),
            producer: ProducerId(u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])),
            sequence: Sequence(number(16)),
            created: Duration::from_nanos(number(24)),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn stamp() -> Stamp {
        Stamp { run: 7, producer: ProducerId(3), sequence: Sequence(u64::MAX), created: Duration::from_nanos(12_345) }
    }

    #[test]
    fn comes_back_from_a_message_in_pieces() {
        let bytes = stamp().encode();
        for cut in 0..=bytes.len() {
            let mut body = Body::new(Bytes::copy_from_slice(&bytes[..cut]));
            body.push(Bytes::copy_from_slice(&bytes[cut..]));
            body.push(Bytes::from_static(b"filler"));
            assert_eq!(Stamp::decode(&body), Some(stamp()), "cut at {cut}");
        }
    }

    #[test]
    fn another_message_has_no_stamp() {
        let bytes = stamp().encode();
        assert_eq!(Stamp::decode(&Body::new(Bytes::copy_from_slice(&bytes[1..]))), None);
        assert_eq!(Stamp::decode(&Body::new(Bytes::from_static(&[b'x'; 64]))), None);
        assert_eq!(Stamp::decode(&Body::default()), None);
    }
}
