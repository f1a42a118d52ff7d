//! Frames in a read buffer: where each starts and ends, and what is wrong with one that cannot be passed over. What is in
//! them is not looked at here, and nothing is copied.
//!
//! A frame is: kind (1 octet), channel (2), payload size (4), payload, end octet 0xCE.

use bytes::Bytes;

use crate::ids::ChannelId;

/// What a client says first, and what a server answers to anything else.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

pub(crate) const HEADER_BYTES: usize = 7;
/// What a frame takes beside its payload. The negotiated `frame_max` includes it.
pub const FRAME_OVERHEAD_BYTES: usize = HEADER_BYTES + 1;
pub(crate) const END_OCTET: u8 = 0xce;

/// No peer may ask for less (AMQP 4.2.3).
pub const FRAME_MIN_SIZE: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Method = 1,
    Header = 2,
    Body = 3,
    Heartbeat = 8,
}

impl FrameKind {
    fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(Self::Method),
            2 => Some(Self::Header),
            3 => Some(Self::Body),
            8 => Some(Self::Heartbeat),
            _ => None,
        }
    }
}

/// A frame that cannot be passed over: where the next one starts is no longer known, or not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame type {0} does not exist")]
    UnknownKind(u8),
    #[error("a frame with {size} octets of payload on channel {channel}, {max} are negotiated")]
    TooLarge { channel: ChannelId, size: u32, max: usize },
    #[error("a frame on channel {channel} ends with {octet:#04x} instead of 0xce")]
    BadEnd { channel: ChannelId, octet: u8 },
}

/// One frame's place in a buffer: its payload is `start..end`, the next frame starts at `end + 1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) channel: ChannelId,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// What a buffer begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Octets of whole, well-formed frames.
    pub(crate) whole: usize,
    /// What comes after them, if it is no frame.
    pub(crate) error: Option<FrameError>,
}

/// Finds the end of the first `frames` frames of `buffer`, or of as many as are whole.
///
/// `max_payload` is the negotiated `frame_max` itself: like RabbitMQ, we let pass a peer that forgets to count the eight
/// octets around the payload. We never forget them in what we send.
pub(crate) fn scan(buffer: &[u8], max_payload: usize, frames: usize) -> Scan {
    let mut whole = 0;
    for _ in 0..frames {
        match first_frame(&buffer[whole..], max_payload) {
            Ok(Some(length)) => whole += length,
            Ok(None) => break,
            Err(error) => return Scan { whole, error: Some(error) },
        }
    }
    Scan { whole, error: None }
}

/// The first frame's length, or `None` if it is not all there.
#[inline]
fn first_frame(buffer: &[u8], max_payload: usize) -> Result<Option<usize>, FrameError> {
    let Some(&[kind, channel_high, channel_low, a, b, c, d]) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    if FrameKind::from_octet(kind).is_none() {
        return Err(FrameError::UnknownKind(kind));
    }
    let channel = ChannelId(u16::from_be_bytes([channel_high, channel_low]));
    let size = u32::from_be_bytes([a, b, c, d]);
    let payload = usize::try_from(size).unwrap_or(usize::MAX);
    if payload > max_payload {
        return Err(FrameError::TooLarge { channel, size, max: max_payload });
    }
    match buffer.get(HEADER_BYTES + payload) {
        None => Ok(None),
        Some(&END_OCTET) => Ok(Some(payload + FRAME_OVERHEAD_BYTES)),
        Some(&octet) => Err(FrameError::BadEnd { channel, octet }),
    }
}

/// How many octets `buffer`, which begins with a partial frame, lacks to be a whole one; at least 1.
pub(crate) fn missing(buffer: &[u8], max_payload: usize) -> usize {
    let length = match buffer.first_chunk::<HEADER_BYTES>() {
        Some(&[.., a, b, c, d]) => {
            let size = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            size.min(max_payload) + FRAME_OVERHEAD_BYTES
        }
        None => FRAME_OVERHEAD_BYTES,
    };
    length.saturating_sub(buffer.len()).max(1)
}

/// The frame at `at` in bytes that [`scan`] found whole.
#[inline]
pub(crate) fn frame_at(bytes: &Bytes, at: usize) -> Option<Frame> {
    let &[kind, channel_high, channel_low, a, b, c, d] = bytes.get(at..)?.first_chunk::<HEADER_BYTES>()?;
    let size = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    let start = at + HEADER_BYTES;
    let end = start.checked_add(size).filter(|end| *end < bytes.len())?;
    let channel = ChannelId(u16::from_be_bytes([channel_high, channel_low]));
    Some(Frame { kind: FrameKind::from_octet(kind)?, channel, start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: &[u8] = &[8, 0, 0, 0, 0, 0, 0, 0xce];
    const TWO_OCTETS: &[u8] = &[3, 0, 5, 0, 0, 0, 2, 1, 2, 0xce];

    #[test]
    fn whole_frames_are_found_and_a_partial_one_is_left() {
        let buffer = [HEARTBEAT, TWO_OCTETS, &TWO_OCTETS[..9]].concat();
        for end in 0..=buffer.len() {
            let whole = match end {
                0..8 => 0,
                8..18 => 8,
                _ => 18,
            };
            assert_eq!(scan(&buffer[..end], 4096, usize::MAX), Scan { whole, error: None }, "first {end} octets");
        }
        assert_eq!(scan(&buffer, 4096, 1).whole, 8);
        let bytes = Bytes::from(buffer);
        let frame = frame_at(&bytes, 8).unwrap();
        assert_eq!((frame.kind, frame.channel, frame.start, frame.end), (FrameKind::Body, ChannelId(5), 15, 17));
        assert!(frame_at(&bytes, 18).is_none());
        assert_eq!(missing(&bytes[18..], 4096), 1);
        assert_eq!(missing(&bytes[18..20], 4096), 6);
    }

    #[test]
    fn a_bad_frame_is_named_and_the_good_ones_before_it_still_count() {
        let check = |frame: &[u8], expected: FrameError| {
            let buffer = [HEARTBEAT, frame].concat();
            assert_eq!(scan(&buffer, 4096, usize::MAX), Scan { whole: 8, error: Some(expected) });
        };
        check(&[4, 0, 0, 0, 0, 0, 0, 0xce], FrameError::UnknownKind(4));
        check(&[3, 0, 1, 0, 0, 0, 0, 0xcf], FrameError::BadEnd { channel: ChannelId(1), octet: 0xcf });
        // Refused by its header alone: nobody waits for 4 GiB.
        let max = FrameError::TooLarge { channel: ChannelId(1), size: u32::MAX, max: 4096 };
        check(&[3, 0, 1, 255, 255, 255, 255], max);
        let one_more = FrameError::TooLarge { channel: ChannelId(1), size: 4097, max: 4096 };
        check(&[3, 0, 1, 0, 0, 16, 1], one_more);
        let buffer = [3, 0, 1, 0, 0, 16, 0];
        assert_eq!(scan(&buffer, 4096, usize::MAX), Scan { whole: 0, error: None });
    }
}
