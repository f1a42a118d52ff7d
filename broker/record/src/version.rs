//! The cluster's version: one number for what may be written to the log and said on the streams between replicas. It stands
//! in the Lease, and every store remembers it. This module says what the present build knows, and from which version on each
//! kind of record may be written. It does not decide when a cluster's version is raised: that is the primary's, once every
//! replica has said that it knows the next one.
//!
//! | version | what it brought |
//! | --- | --- |
//! | 1 | everything up to large messages in parts |
//! | 2 | transactions, records withheld from replicas that do not need them, records of the scrub |
//! | 3 | the time, messages that expire, priorities in checkpoints; virtual hosts, users, permissions, limits, policies; message de-duplication |
//!
//! A new kind of record gets the next version that has not been released, a row here, and its place in [`Record::since`] or
//! [`BasePiece::since`]. A build that a rolling upgrade may start from must know the version before: `OLDEST` moves up no
//! faster than that.
//!
//! With the feature `made-up-version`, for tests of upgrades, this is a build of the next version, which brought one kind of
//! record that says nothing.

use std::fmt;

use crate::{BasePiece, Record};

/// What every replica of a cluster knows. Only grows. Where nothing says it (a Lease, a hello, a store of before there were
/// versions) it is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterVersion(pub u32);

impl ClusterVersion {
    pub const FIRST: Self = Self(1);

    /// The oldest cluster that this build may be part of.
    pub const OLDEST: Self = Self::FIRST;

    /// The newest cluster that this build may be part of.
    pub const NEWEST: Self = Self(3 + cfg!(feature = "made-up-version") as u32);

    /// As a wire or a file has it, where 0 stands for what was not said.
    pub fn said(number: u32) -> Self {
        Self(number.max(Self::FIRST.0))
    }
}

impl Default for ClusterVersion {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for ClusterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a build knows, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VersionRange {
    pub oldest: ClusterVersion,
    pub newest: ClusterVersion,
}

impl VersionRange {
    /// This build's.
    pub const OWN: Self = Self { oldest: ClusterVersion::OLDEST, newest: ClusterVersion::NEWEST };

    pub fn contains(self, version: ClusterVersion) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// # Errors
    /// If a build that knows these has no place in a cluster of that version.
    pub fn check(self, cluster: ClusterVersion) -> Result<(), UnknownVersion> {
        if self.contains(cluster) { Ok(()) } else { Err(UnknownVersion { knows: self, cluster }) }
    }

    /// The newest version that all of them know; `None` if there is none, or they are none.
    pub fn newest_common(ranges: impl IntoIterator<Item = Self>) -> Option<ClusterVersion> {
        let both = |a: Self, b: Self| Self { oldest: a.oldest.max(b.oldest), newest: a.newest.min(b.newest) };
        let common = ranges.into_iter().reduce(both)?;
        common.contains(common.newest).then_some(common.newest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest { write!(f, "version {newest}") } else { write!(f, "versions {oldest} to {newest}") }
    }
}

/// A build in a cluster, or on a store, whose version it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownVersion {
    pub knows: VersionRange,
    pub cluster: ClusterVersion,
}

impl std::error::Error for UnknownVersion {}

/// Like `this build knows versions 1 to 2, the cluster is at version 3: …` after the words `this build `.
impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { knows, cluster } = self;
        write!(f, "knows {knows}, the cluster is at version {cluster}: ")?;
        if *cluster > knows.newest {
            write!(
                f,
                "upgrade it to one that knows version {cluster}; a cluster does not go back to an earlier version"
            )
        } else {
            write!(f, "upgrade by way of a build that knows both version {cluster} and version {}", knows.oldest)
        }
    }
}

impl Record {
    /// From which version on a record of this tag may be written; `None` for one that this build does not know.
    pub(crate) const fn since(tag: u8) -> Option<ClusterVersion> {
        match tag {
            1..=15 => Some(ClusterVersion(1)),
            16..=29 => Some(ClusterVersion(2)),
            30 | 40..=50 | 60..=61 | 70..=72 => Some(ClusterVersion(3)),
            #[cfg(feature = "made-up-version")]
            Self::MADE_UP => Some(ClusterVersion::NEWEST),
            _ => None,
        }
    }

    /// What the primary of a cluster at the made-up version writes once in an epoch.
    #[cfg(feature = "made-up-version")]
    pub fn once_an_epoch(epoch: crate::Epoch, cluster: ClusterVersion) -> Option<Self> {
        (cluster >= ClusterVersion::NEWEST).then_some(Self::MadeUp { epoch })
    }

    /// What a primary writes once in an epoch for the sake of the cluster's version: nothing so far.
    #[cfg(not(feature = "made-up-version"))]
    pub fn once_an_epoch(_: crate::Epoch, _: ClusterVersion) -> Option<Self> {
        None
    }
}

impl BasePiece {
    /// From which version on a piece of this tag may be written; `None` for one that this build does not know.
    pub(crate) const fn since(tag: u8) -> Option<ClusterVersion> {
        match tag {
            1..=12 => Some(ClusterVersion(1)),
            13..=15 => Some(ClusterVersion(2)),
            16..=25 => Some(ClusterVersion(3)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Body, RecordError};

    fn range(oldest: u32, newest: u32) -> VersionRange {
        VersionRange { oldest: ClusterVersion(oldest), newest: ClusterVersion(newest) }
    }

    #[test]
    fn every_tag_that_can_be_read_says_since_when_it_may_be_written() {
        for tag in 0..=u8::MAX {
            let unknown = Err(RecordError::UnknownTag { tag });
            let record = Record::decode(Bytes::copy_from_slice(&[tag]), Body::default());
            assert_eq!(Record::since(tag).is_none(), record.map(drop) == unknown, "record tag {tag}");
            let piece = BasePiece::decode(Bytes::copy_from_slice(&[tag]), Body::default());
            assert_eq!(BasePiece::since(tag).is_none(), piece.map(drop) == unknown, "piece tag {tag}");
            for since in [Record::since(tag), BasePiece::since(tag)].into_iter().flatten() {
                assert!(since <= ClusterVersion::NEWEST, "tag {tag} is of version {since}");
            }
        }
    }

    #[test]
    fn the_newest_version_that_all_know() {
        let table: [(&[VersionRange], Option<u32>); 5] = [
            (&[], None),
            (&[range(1, 2)], Some(2)),
            (&[range(1, 3), range(1, 2), range(2, 4)], Some(2)),
            (&[range(1, 2), range(3, 4)], None),
            (&[range(2, 1)], None),
        ];
        for (ranges, expected) in table {
            assert_eq!(VersionRange::newest_common(ranges.iter().copied()), expected.map(ClusterVersion), "{ranges:?}");
        }
    }

    #[test]
    fn a_build_out_of_place_is_told_the_way() {
        let told = |knows: VersionRange, cluster| knows.check(ClusterVersion(cluster)).unwrap_err().to_string();
        assert_eq!(range(1, 2).check(ClusterVersion(2)), Ok(()));
        assert_eq!(
            told(range(1, 2), 3),
            "knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does \
             not go back to an earlier version"
        );
        assert_eq!(
            told(range(3, 3), 1),
            "knows version 3, the cluster is at version 1: upgrade by way of a build that knows both version 1 and \
             version 3"
        );
    }
}
