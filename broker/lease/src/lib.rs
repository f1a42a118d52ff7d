//! Where the Lease is kept. One trait, [`LeaseStore`], and two stores behind it: a Kubernetes Lease, and a file that the
//! broker processes of one machine share.
//!
//! A store reads, creates, swaps and watches; it decides nothing, retries no write, and derives no Lease value (see
//! `understudy-election`). What it must get right is the answer to a write: applied, certainly not applied, or unknown,
//! since a primary that takes an unknown answer for a refusal confirms messages it may lose (rule 3).

mod kubernetes;
mod local;

use async_trait::async_trait;
use futures::stream::BoxStream;
use understudy_election::{Lease, Stored, Version};

pub use kubernetes::{
    DURATION_ANNOTATION, GIVEN_EPOCH_ANNOTATION, IN_SYNC_ANNOTATION, KubernetesLease, VERSION_ANNOTATION,
};
pub use local::LocalLease;

#[async_trait]
pub trait LeaseStore: Send + Sync {
    async fn read(&self) -> Result<Stored, LeaseError>;

    /// A blank one, which the next swap gives a content. [`SwapError::Conflict`] if there is one already.
    async fn create(&self) -> Result<Version, SwapError>;

    /// Writes `lease` if the store still holds `expected`, and stamps the time of the write. A renewal is a swap too.
    async fn swap(&self, expected: &Version, lease: &Lease) -> Result<Version, SwapError>;

    /// The current state first, then each change; states in between may be left out. Errors are reported and the stream
    /// goes on: it never ends.
    fn watch(&self) -> BoxStream<'static, Result<Stored, LeaseError>>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("the Lease cannot be read: {why}")]
    Unavailable { why: String },
    /// Somebody else wrote it, or damaged it. `field` is where a person finds it.
    #[error("the Lease is not one of ours: {field}: {why}")]
    Malformed { field: &'static str, why: String },
}

/// Why a write has not succeeded, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// The store holds another version. Read again: it may even be an own earlier write whose answer was lost.
    #[error("the Lease has changed meanwhile")]
    Conflict,
    /// It may have been applied, and it may yet be: the request may still be on its way.
    #[error("the Lease may or may not have been written: {why}")]
    Unknown { why: String },
    /// Certainly not applied, and it never will be.
    #[error("the Lease was not written: {why}")]
    Refused { why: String },
}
