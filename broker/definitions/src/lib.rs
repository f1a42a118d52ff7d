//! RabbitMQ's file of definitions, read and written. What is in it becomes changes, in an order in which each finds what it
//! needs; of every entry that is none, or not yet, a line says so. What the broker makes of each change is the broker's.
//!
//! The crate knows no file and no connection: who has the text and who speaks to a primary use it.

mod entries;
mod export;
mod json;
mod plan;
mod report;

use argon2::Argon2;
use argon2::password_hash::{PasswordHasher, SaltString};

pub use export::export;
pub use json::{from_arguments, to_arguments};
pub use plan::{Plan, plan};
pub use report::Report;

/// Of an argon2id hash, which RabbitMQ does not know.
const OWN_ALGORITHM: &str = "understudy_argon2id";
const SHA256: &str = "rabbit_password_hashing_sha256";
const SHA512: &str = "rabbit_password_hashing_sha512";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the password cannot be hashed: {0}")]
pub struct HashError(String);

/// With argon2id, in PHC form, and a new salt each time. No broker ever sees a password that is set.
///
/// # Errors
/// If it is longer than argon2 takes, 4 GiB.
pub fn hash(password: &str) -> Result<String, HashError> {
    let failed = |error: argon2::password_hash::Error| HashError(error.to_string());
    let salt = SaltString::encode_b64(&rand::random::<[u8; 16]>()).map_err(failed)?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt).map_err(failed)?.to_string())
}

#[cfg(test)]
mod tests {
    use argon2::PasswordVerifier;
    use argon2::password_hash::PasswordHash;

    use super::*;

    #[test]
    fn a_password_is_hashed_anew_each_time_and_verifies() {
        let (one, other) = (hash("secret").unwrap(), hash("secret").unwrap());
        assert_ne!(one, other);
        let verify = |password: &str| {
            Argon2::default().verify_password(password.as_bytes(), &PasswordHash::new(&one).unwrap()).is_ok()
        };
        assert!(verify("secret") && !verify("Secret"));
    }
}
