//! Hashes of passwords with argon2id, in PHC form. One after the other, in one piece of memory that is kept: the allocator gives
//! back none of the pieces that hashes of many clusters leave between what lives on.

use std::sync::{Mutex, PoisonError};

use argon2::password_hash::{Error, Output, PasswordHash, Salt, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};

/// Each connection costs a broker one hash, and after a failover thousands come at once: 4 MiB and one pass take two
/// milliseconds. The password we make withstands any cost; one that a person sets should be as long.
const HASH_KIB: u32 = 4096;
const HASH_PASSES: u32 = 1;
/// A hash that needs more memory than this is none of ours, and is made anew.
const MAX_KIB: u32 = 64 * 1024;

static MEMORY: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// With a new salt each time.
///
/// # Errors
/// If the password is longer than argon2 takes, 4 GiB.
pub(super) fn hash(password: &str) -> Result<String, Error> {
    let params = Params::new(HASH_KIB, HASH_PASSES, 1, None)?;
    let salt = SaltString::encode_b64(&rand::random::<[u8; 16]>())?;
    let hash = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: (&params).try_into()?,
        salt: Some(salt.as_salt()),
        hash: Some(output(password, salt.as_salt(), Version::V0x13, params)?),
    };
    Ok(hash.to_string())
}

/// Whether it is this password's.
pub(super) fn matches(hash: &str, password: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    let (Some(salt), Some(expected)) = (hash.salt, hash.hash) else { return false };
    let version = hash.version.map_or(Ok(Version::V0x13), Version::try_from);
    let (Ok(version), Ok(params)) = (version, Params::try_from(&hash)) else { return false };
    let known = hash.algorithm == Algorithm::Argon2id.ident() && params.m_cost() <= MAX_KIB;
    known && output(password, salt, version, params).is_ok_and(|output| output == expected)
}

fn output(password: &str, salt: Salt<'_>, version: Version, params: Params) -> Result<Output, Error> {
    let mut bytes = [0; Salt::MAX_LENGTH];
    let salt = salt.decode_b64(&mut bytes)?;
    let (blocks, length) = (params.block_count(), params.output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN));
    let argon2 = Argon2::new(Algorithm::Argon2id, version, params);
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.len() < blocks {
        memory.resize(blocks, Block::default());
    }
    Output::init_with(length, |out| {
        argon2.hash_password_into_with_memory(password.as_bytes(), salt, out, memory.as_mut_slice()).map_err(Into::into)
    })
}

#[cfg(test)]
mod tests {
    use argon2::password_hash::{PasswordHasher, PasswordVerifier};

    use super::*;

    /// As the library does it by itself.
    #[test]
    fn hashes_are_argon2s() {
        let ours = hash("secret").unwrap();
        assert!(ours.starts_with("$argon2id$v=19$m=4096,t=1,p=1$"), "{ours}");
        assert!(Argon2::default().verify_password(b"secret", &PasswordHash::new(&ours).unwrap()).is_ok());
        assert_ne!(hash("secret").unwrap(), ours, "the salt is another one");
        assert!(matches(&ours, "secret") && !matches(&ours, "Secret"));

        let salt = SaltString::encode_b64(b"0123456789abcdef").unwrap();
        let theirs = Argon2::default().hash_password(b"secret", &salt).unwrap().to_string();
        assert!(matches(&theirs, "secret") && !matches(&theirs, ""));
        assert!(matches(&ours, "secret"), "what a larger one has left does not matter");
    }

    #[test]
    fn what_is_no_hash_matches_nothing() {
        let ours = hash("secret").unwrap();
        for text in ["", "secret", "$argon2id$v=19$m=4096,t=1,p=1$", &ours.replace("m=4096", "m=1048576")] {
            assert!(!matches(text, "secret"), "{text}");
        }
        assert!(!matches(&ours.replace("argon2id", "argon2i"), "secret"));
    }
}
