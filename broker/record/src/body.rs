//! Bytes in pieces: a message body as it came off a socket, a stream as it came off a peer. Nothing here copies, except
//! where a caller asks for a run of bytes that crosses a piece's edge.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// A message body: reference-counted pieces in order, one for most messages.
#[derive(Clone, Debug, Default)]
pub struct Body {
    first: Bytes,
    rest: Vec<Bytes>,
}

impl Body {
    pub fn new(bytes: Bytes) -> Self {
        Self { first: bytes, rest: Vec::new() }
    }

    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
        } else if self.first.is_empty() {
            self.first = piece;
        } else {
            self.rest.push(piece);
        }
    }

    /// In bytes.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The pieces, none of them empty.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        std::iter::once(&self.first).chain(&self.rest).filter(|piece| !piece.is_empty())
    }

    /// One run of bytes; copies if there are several pieces.
    pub fn to_contiguous(&self) -> Bytes {
        if self.rest.is_empty() {
            return self.first.clone();
        }
        let mut whole = BytesMut::with_capacity(self.len());
        self.pieces().for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.pieces().flatten().eq(other.pieces().flatten())
    }
}

impl Eq for Body {}

impl std::hash::Hash for Body {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.pieces().flatten().for_each(|byte| state.write_u8(*byte)); // as they compare: wherever the pieces part
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(bytes)
    }
}

/// A stream of bytes in pieces, read from the front.
#[derive(Clone, Debug, Default)]
pub struct Rope {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Rope {
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Bytes not yet taken.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first `into.len()` bytes without taking them; `false` if there are not so many.
    pub fn peek(&self, into: &mut [u8]) -> bool {
        if into.len() > self.len {
            return false;
        }
        let mut filled = 0;
        for piece in &self.pieces {
            let count = piece.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&piece[..count]);
            filled += count;
            if filled == into.len() {
                break;
            }
        }
        true
    }

    /// Takes the first `count` bytes as pieces, without copying; `None` if there are not so many.
    pub fn take(&mut self, count: usize) -> Option<Body> {
        if count > self.len {
            return None;
        }
        let mut body = Body::default();
        let mut wanted = count;
        while wanted > 0 {
            let mut piece = self.pieces.pop_front()?;
            if piece.len() > wanted {
                self.pieces.push_front(piece.split_off(wanted));
            }
            wanted -= piece.len();
            body.push(piece);
        }
        self.len -= count;
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(pieces: &[&'static str]) -> Rope {
        let mut rope = Rope::default();
        pieces.iter().for_each(|piece| rope.push(Bytes::from_static(piece.as_bytes())));
        rope
    }

    #[test]
    fn takes_across_the_edges_of_pieces() {
        let mut rope = rope(&["ab", "", "cde", "f"]);
        let mut two = [0; 2];
        assert!(rope.peek(&mut two));
        assert_eq!(&two, b"ab");
        assert_eq!(rope.take(3).unwrap().to_contiguous(), "abc");
        assert_eq!(rope.take(4), None);
        assert_eq!(rope.take(3).unwrap().to_contiguous(), "def");
        assert!(rope.is_empty());
        assert!(!rope.peek(&mut two));
    }

    #[test]
    fn bodies_are_equal_by_content_not_by_pieces() {
        let mut pieces = Body::new(Bytes::from_static(b"ab"));
        pieces.push(Bytes::from_static(b"c"));
        assert_eq!(pieces, Body::new(Bytes::from_static(b"abc")));
        assert_ne!(pieces, Body::new(Bytes::from_static(b"abd")));
        assert_eq!(pieces.pieces().count(), 2);
        assert_eq!(Body::default().pieces().count(), 0);
    }
}
