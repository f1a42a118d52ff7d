//! Identities and positions. Each is a type of its own, so that an epoch is never taken for an index.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

/// A primary's term: the Lease's `leaseTransitions`. 0 stands for "before any primary".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Place of a record in the log, counted in records from 1; 0 stands for the empty log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(pub u64);

impl Index {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The index before this one; the empty log stays the empty log.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// A record's place together with the epoch that wrote it. Two logs that agree on one position agree on all before it.
/// Ordered by epoch first: the higher position belongs to the log that knows more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub epoch: Epoch,
    pub index: Index,
}

/// One data directory's life. A pod that lost its disk comes back as another store. Written as 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u128);

/// One process start. Written as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// A replica's name: the pod's name in Kubernetes. Stable over restarts, says nothing about the disk behind it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaName(Arc<str>);

impl ReplicaName {
    /// Kubernetes' own bound for a pod's name.
    pub const MAX_BYTES: usize = 253;

    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who exactly: the name, the disk, the process. The Lease's `holderIdentity`, written `name/store/process`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub name: ReplicaName,
    pub store: StoreId,
    pub process: ProcessId,
}

/// One entry of the in-sync set, written `name/store`, or `name/store/process` where a restart loses what was
/// acknowledged (`durability: Replicated`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub name: ReplicaName,
    pub store: StoreId,
    pub process: Option<ProcessId>,
}

impl Member {
    /// Whether `identity` is the one this entry speaks of: the same name and store and, where the entry names a process,
    /// the same process.
    pub fn is(&self, identity: &Identity) -> bool {
        self.name == identity.name
            && self.store == identity.store
            && self.process.is_none_or(|process| process == identity.process)
    }
}

impl Identity {
    /// This identity as an in-sync set's entry. `with_process`: the set is one of `durability: Replicated`.
    pub fn member(&self, with_process: bool) -> Member {
        Member { name: self.name.clone(), store: self.store, process: with_process.then_some(self.process) }
    }
}

/// A queue's identity: the index of the record that declared it. A queue declared anew under an old name is another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub Index);

/// A virtual host's identity: the index of the record that created it. One created anew under an old name is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VhostId(pub Index);

impl VhostId {
    /// `/`, which exists without a record.
    pub const DEFAULT: Self = Self(Index(0));
}

/// An AMQP short string: at most 255 bytes, any content. A view into the buffer it was read from; no allocation.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortStr(Bytes);

impl ShortStr {
    pub const MAX_BYTES: usize = 255;
    pub const EMPTY: Self = Self(Bytes::new());

    /// `None` if longer than 255 bytes.
    pub fn new(bytes: Bytes) -> Option<Self> {
        (bytes.len() <= Self::MAX_BYTES).then_some(Self(bytes))
    }

    /// For text known at compile time to be short.
    ///
    /// # Panics
    /// If `text` is longer than 255 bytes.
    pub fn from_static(text: &'static str) -> Self {
        assert!(text.len() <= Self::MAX_BYTES, "{} bytes in a short string: {text}", text.len());
        Self(Bytes::from_static(text.as_bytes()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy that no longer holds on to the buffer it came from: for what is kept long, like a queue's name.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// For people: invalid UTF-8 is replaced.
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl TryFrom<&str> for ShortStr {
    type Error = ParseIdError;

    fn try_from(text: &str) -> Result<Self, ParseIdError> {
        Self::new(Bytes::copy_from_slice(text.as_bytes())).ok_or_else(|| ParseIdError::new("short string", text))
    }
}

impl std::borrow::Borrow<[u8]> for ShortStr {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ShortStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

impl fmt::Display for ShortStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// A text that should have been an identity is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {what}: {text:?}")]
pub struct ParseIdError {
    what: &'static str,
    text: String,
}

impl ParseIdError {
    fn new(what: &'static str, text: &str) -> Self {
        Self { what, text: text.chars().take(300).collect() }
    }
}

macro_rules! decimal {
    ($type:ident, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl FromStr for $type {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.parse().map(Self).map_err(|_| ParseIdError::new($what, text))
            }
        }
    };
}
decimal!(Epoch, "epoch");
decimal!(Index, "log index");

macro_rules! hex {
    ($type:ident, $int:ty, $digits:literal, $format:literal, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl FromStr for $type {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let well_formed = text.len() == $digits && text.bytes().all(|b| b.is_ascii_hexdigit());
                let value = well_formed.then(|| <$int>::from_str_radix(text, 16).ok()).flatten();
                value.map(Self).ok_or_else(|| ParseIdError::new($what, text))
            }
        }
    };
}
hex!(StoreId, u128, 32, "{:032x}", "store id");
hex!(ProcessId, u64, 16, "{:016x}", "process id");

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.index)
    }
}

impl fmt::Debug for ReplicaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ReplicaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for VhostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What can be a pod's name, and stand in a list and in a record.
fn is_name(name: &str) -> bool {
    (1..=ReplicaName::MAX_BYTES).contains(&name.len()) && !name.contains(',')
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.name, self.store, self.process)
    }
}

impl FromStr for Identity {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(store), Some(process), None) if is_name(name) => {
                Ok(Self { name: ReplicaName::new(name), store: store.parse()?, process: process.parse()? })
            }
            _ => Err(ParseIdError::new("replica identity (name/store/process)", text)),
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.store)?;
        self.process.map_or(Ok(()), |process| write!(f, "/{process}"))
    }
}

impl FromStr for Member {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(store), process, None) if is_name(name) => Ok(Self {
                name: ReplicaName::new(name),
                store: store.parse()?,
                process: process.map(str::parse).transpose()?,
            }),
            _ => Err(ParseIdError::new("in-sync member (name/store or name/store/process)", text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_they_are_written() {
        let identity = Identity { name: ReplicaName::new("orders-0"), store: StoreId(0xabc), process: ProcessId(7) };
        assert_eq!(identity.to_string(), "orders-0/00000000000000000000000000000abc/0000000000000007");
        assert_eq!(identity.to_string().parse::<Identity>(), Ok(identity.clone()));
        for member in [identity.member(false), identity.member(true)] {
            assert_eq!(member.to_string().parse::<Member>(), Ok(member.clone()));
            assert!(member.is(&identity));
        }
    }

    #[test]
    fn a_set_entry_speaks_of_a_store_and_where_it_says_so_of_a_process() {
        let identity = Identity { name: ReplicaName::new("orders-0"), store: StoreId(1), process: ProcessId(7) };
        let restarted = Identity { process: ProcessId(8), ..identity.clone() };
        let wiped = Identity { store: StoreId(2), ..identity.clone() };
        assert!(identity.member(false).is(&restarted));
        assert!(!identity.member(true).is(&restarted));
        assert!(!identity.member(false).is(&wiped));
    }

    #[test]
    fn what_is_no_identity_is_refused() {
        for text in [
            "",
            "a",
            "a/b/c",
            "/00000000000000000000000000000abc/0000000000000007",
            "a/+0000000000000000000000000000abc/1",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
            assert!(text.parse::<Member>().is_err(), "{text}");
        }
    }
}
