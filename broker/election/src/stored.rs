//! What a lease store holds at one moment. Does not know how it is stored, nor who may change it.
//!
//! A Lease begins *blank*: it is created without a content, by anybody at any time, and a swap gives it one. A request to
//! create it may take effect late, after others have come and gone; being blank it then brings nothing back (rule 7).

use std::fmt;

use crate::Lease;

/// The Lease as a store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// There is none.
    Absent,
    /// It says nothing yet.
    Blank(Version),
    Held(Lease, Version),
}

/// What a lease store wrote or read for one state of the Lease, and what a swap of that state must name. Never given twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    incarnation: Incarnation,
    revision: String,
}

/// Tells a Lease from the one that was there before it was deleted: Kubernetes' `metadata.uid`, a file's random number. The
/// same from its creation to its deletion; never given twice. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(String);

impl Stored {
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Held(lease, _) => Some(lease),
            Self::Absent | Self::Blank(_) => None,
        }
    }

    pub fn version(&self) -> Option<&Version> {
        match self {
            Self::Absent => None,
            Self::Blank(version) | Self::Held(_, version) => Some(version),
        }
    }

    /// Which Lease it is, if it is blank.
    pub fn blank(&self) -> Option<&Incarnation> {
        match self {
            Self::Blank(version) => Some(version.incarnation()),
            Self::Absent | Self::Held(..) => None,
        }
    }

    /// The Lease and its version, if it has a content.
    pub fn into_held(self) -> Option<(Lease, Version)> {
        match self {
            Self::Held(lease, version) => Some((lease, version)),
            Self::Absent | Self::Blank(_) => None,
        }
    }
}

impl Version {
    /// `revision`: Kubernetes' `resourceVersion`, a file's counter.
    pub fn new(incarnation: Incarnation, revision: impl Into<String>) -> Self {
        Self { incarnation, revision: revision.into() }
    }

    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    pub fn revision(&self) -> &str {
        &self.revision
    }
}

impl Incarnation {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.revision, self.incarnation)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
