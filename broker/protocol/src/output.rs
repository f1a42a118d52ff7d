//! What waits to be written to a socket: small things gathered in one buffer, large bodies by reference between them, read
//! out as a list of slices for a vectored write. It does not bound itself: see [`Output::len`].

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use understudy_record::Body;

use crate::content::ContentHead;
use crate::frame::{END_OCTET, FRAME_OVERHEAD_BYTES, FrameKind};
use crate::ids::ChannelId;
use crate::method::Method;
use crate::wire::Writer;

/// Bodies up to this size are copied behind their header: cheaper than a reference count and a slice of a vectored write.
const COPY_BYTES: usize = 1024;
/// Capacity that an idle connection keeps; thousands of connections are idle most of the time.
const KEEP_BYTES: usize = 16 * 1024;
/// Octets already written out that may stay in front of the buffer before the rest is moved down.
const SLACK_BYTES: usize = 64 * 1024;

/// Implements [`Buf`], so that `AsyncWriteExt::write_buf` writes it out, vectored, and takes off what was written.
///
/// Whoever fills it watches [`Self::len`] and stops delivering above a bound of its own: a peer that does not read leaves
/// everything here.
#[derive(Debug, Default)]
pub struct Output {
    small: Vec<u8>,
    /// How much of `small` is written out.
    at: usize,
    /// Bodies, each with the place in `small` before which it goes.
    large: VecDeque<(usize, Bytes)>,
    large_bytes: usize,
    /// Octets ever put in; heartbeats look whether it grew.
    total: u64,
}

/// A content header (the properties) that does not fit into one frame of the size this peer agreed to; AMQP cannot split
/// it. Nothing of the message was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("properties of {size} octets do not fit in a frame of {frame_max}")]
pub struct HeaderTooLarge {
    pub size: usize,
    pub frame_max: u32,
}

impl Output {
    /// Octets not written out yet.
    pub fn len(&self) -> usize {
        self.small.len() - self.at + self.large_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn push_raw(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
        self.total += bytes.len() as u64;
    }

    pub(crate) fn push_method(&mut self, channel: ChannelId, method: &Method) {
        self.frame(FrameKind::Method, channel, |small| method.encode(small));
    }

    pub(crate) fn push_heartbeat(&mut self) {
        self.frame(FrameKind::Heartbeat, ChannelId::CONNECTION, |_| ());
    }

    /// A method with content: its frame, the header's, and as many body frames as `frame_max` asks for, none for an empty
    /// body.
    pub(crate) fn push_content(
        &mut self,
        channel: ChannelId,
        frame_max: u32,
        head: &impl ContentHead,
        properties: &[u8],
        body: &Body,
    ) -> Result<(), HeaderTooLarge> {
        self.push_content_head(channel, frame_max, head, properties, body.len() as u64)?;
        self.push_body(channel, frame_max, body);
        Ok(())
    }

    /// The same without the body, whose `size` octets follow.
    #[inline]
    pub(crate) fn push_content_head(
        &mut self,
        channel: ChannelId,
        frame_max: u32,
        head: &impl ContentHead,
        properties: &[u8],
        size: u64,
    ) -> Result<(), HeaderTooLarge> {
        let properties = if properties.is_empty() { &[0, 0] } else { properties };
        if properties.len() + CONTENT_HEADER_BYTES > max_payload(frame_max) {
            return Err(HeaderTooLarge { size: properties.len(), frame_max });
        }
        self.frame(FrameKind::Method, channel, |small| head.write_method(&mut Writer::new(small)));
        self.frame(FrameKind::Header, channel, |small| {
            small.extend_from_slice(&[0, 60, 0, 0]); // class basic, weight 0
            small.extend_from_slice(&size.to_be_bytes());
            small.extend_from_slice(properties);
        });
        Ok(())
    }

    /// A body, or a piece of one, in frames of its own.
    pub(crate) fn push_body(&mut self, channel: ChannelId, frame_max: u32, body: &Body) {
        let max_payload = max_payload(frame_max);
        let mut left = body.len();
        let mut room = 0; // in the frame begun
        for piece in body.pieces() {
            let mut from = 0;
            while from < piece.len() {
                if room == 0 {
                    room = left.min(max_payload);
                    self.begin_frame(FrameKind::Body, channel, room);
                }
                let count = room.min(piece.len() - from);
                if count <= COPY_BYTES {
                    self.small.extend_from_slice(&piece[from..from + count]);
                } else {
                    self.large.push_back((self.small.len(), piece.slice(from..from + count)));
                    self.large_bytes += count;
                }
                self.total += count as u64;
                from += count;
                left -= count;
                room -= count;
                if room == 0 {
                    self.push_raw(&[END_OCTET]);
                }
            }
        }
    }

    #[inline]
    fn begin_frame(&mut self, kind: FrameKind, channel: ChannelId, payload: usize) {
        let [channel_high, channel_low] = channel.0.to_be_bytes();
        let [a, b, c, d] = u32::try_from(payload).expect("a payload under frame_max").to_be_bytes();
        self.push_raw(&[kind as u8, channel_high, channel_low, a, b, c, d]);
    }

    #[inline]
    fn frame(&mut self, kind: FrameKind, channel: ChannelId, payload: impl FnOnce(&mut Vec<u8>)) {
        let before = self.small.len();
        self.begin_frame(kind, channel, 0);
        let start = self.small.len();
        payload(&mut self.small);
        let size = u32::try_from(self.small.len() - start).expect("a payload under 4 GiB");
        self.small[start - 4..start].copy_from_slice(&size.to_be_bytes());
        self.small.push(END_OCTET);
        self.total += (self.small.len() - before) as u64 - crate::frame::HEADER_BYTES as u64; // begin_frame counted those
    }

    /// Gives back or moves what is written out, so that memory follows what still waits.
    fn tidy(&mut self) {
        if self.at == self.small.len() && self.large.is_empty() {
            self.small.clear();
            self.small.shrink_to(KEEP_BYTES);
            self.at = 0;
        } else if self.at > SLACK_BYTES && self.at > self.small.len() / 2 {
            self.small.drain(..self.at);
            self.large.iter_mut().for_each(|(place, _)| *place -= self.at);
            self.at = 0;
        }
    }
}

/// Class, weight and body size.
const CONTENT_HEADER_BYTES: usize = 12;

fn max_payload(frame_max: u32) -> usize {
    (frame_max as usize).saturating_sub(FRAME_OVERHEAD_BYTES).max(1)
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        match self.large.front() {
            Some((place, bytes)) if *place == self.at => bytes,
            Some((place, _)) => &self.small[self.at..*place],
            None => &self.small[self.at..],
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let slot = slices.get_mut(filled);
            filled += usize::from(slot.is_some());
            slot.map(|slot| *slot = IoSlice::new(bytes)).is_some()
        };
        let mut at = self.at;
        for (place, bytes) in &self.large {
            if !(put(&self.small[at..*place]) && put(bytes)) {
                return filled;
            }
            at = *place;
        }
        put(&self.small[at..]);
        filled
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance by {count} of {} octets", self.len());
        let mut left = count;
        while left > 0 {
            match self.large.front_mut() {
                Some((place, bytes)) if *place == self.at => {
                    let taken = left.min(bytes.len());
                    bytes.advance(taken);
                    self.large_bytes -= taken;
                    left -= taken;
                    if bytes.is_empty() {
                        self.large.pop_front();
                    }
                }
                next => {
                    let end = next.map_or(self.small.len(), |(place, _)| *place);
                    let taken = left.min(end - self.at);
                    self.at += taken;
                    left -= taken;
                }
            }
        }
        self.tidy();
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
