//! Who may log in: one user a line, its password as an argon2id hash. Passwords are never kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use argon2::password_hash::PasswordHash;
use argon2::{Argon2, PasswordVerifier};
use sha2::{Digest, Sha256};

use crate::config::Users;

/// Logins that were verified are remembered, so that a storm of reconnects costs no storm of argon2. A keyed digest is
/// kept, with a key that lives as long as the process.
const REMEMBERED: usize = 4096;

/// Users in the file at most; it is one cluster's, not a directory.
const MAX_USERS: usize = 10_000;

pub(crate) struct Authenticator {
    users: HashMap<String, String>,
    open_guest: bool,
    key: [u8; 32],
    verified: Mutex<HashMap<[u8; 32], ()>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("cannot read the users file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}, line {line}: {what}; each line is name:hash with the hash in PHC form ($argon2id$…)", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{} names no user, so nobody could log in", path.display())]
    Empty { path: PathBuf },
}

impl Authenticator {
    pub(crate) fn read(users: &Users) -> Result<Self, UsersError> {
        let (users, open_guest) = match users {
            Users::OpenGuest => (HashMap::new(), true),
            Users::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| UsersError::Read { path: path.clone(), source })?;
                (parse(path, &text)?, false)
            }
        };
        Ok(Self { users, open_guest, key: rand::random(), verified: Mutex::default() })
    }

    /// Whether there is such a user, for one whose name somebody else has proved.
    pub(crate) fn knows(&self, user: &str) -> bool {
        if self.open_guest { user == "guest" } else { self.users.contains_key(user) }
    }

    /// Whether the answer takes no time: it has been found right before, or nothing has to be hashed.
    pub(crate) fn is_quick(&self, user: &[u8], password: &[u8]) -> bool {
        let hash = std::str::from_utf8(user).ok().and_then(|user| self.users.get(user));
        hash.is_none_or(|hash| self.remembered().contains_key(&self.digest(hash, password)))
    }

    /// Takes tens of milliseconds the first time: not for an async task's own thread.
    pub(crate) fn verify(&self, user: &[u8], password: &[u8]) -> bool {
        if self.open_guest {
            return user == b"guest" && password == b"guest";
        }
        let Some(hash) = std::str::from_utf8(user).ok().and_then(|user| self.users.get(user)) else {
            return false;
        };
        let digest = self.digest(hash, password);
        if self.remembered().contains_key(&digest) {
            return true;
        }
        let right =
            PasswordHash::new(hash).is_ok_and(|parsed| Argon2::default().verify_password(password, &parsed).is_ok());
        if right {
            let mut remembered = self.remembered();
            if remembered.len() >= REMEMBERED {
                remembered.clear();
            }
            remembered.insert(digest, ());
        }
        right
    }

    fn digest(&self, hash: &str, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.key);
        digest.update((hash.len() as u64).to_le_bytes());
        digest.update(hash);
        digest.update(password);
        digest.finalize().into()
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], ()>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(path: &Path, text: &str) -> Result<HashMap<String, String>, UsersError> {
    let mut users = HashMap::new();
    for (place, line) in text.lines().enumerate() {
        let line_error = |what: &str| UsersError::Line { path: path.into(), line: place + 1, what: what.into() };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, hash) = line.split_once(':').ok_or_else(|| line_error("no colon"))?;
        let parsed = PasswordHash::new(hash).map_err(|error| line_error(&error.to_string()))?;
        if !parsed.algorithm.as_str().starts_with("argon2") {
            return Err(line_error(&format!("{} is not argon2", parsed.algorithm)));
        }
        if name.is_empty() || users.insert(name.to_owned(), hash.to_owned()).is_some() {
            return Err(line_error("the name is empty or stands twice"));
        }
        if users.len() > MAX_USERS {
            return Err(line_error("too many users"));
        }
    }
    if users.is_empty() { Err(UsersError::Empty { path: path.into() }) } else { Ok(users) }
}

#[cfg(test)]
mod tests {
    use argon2::PasswordHasher;
    use argon2::password_hash::SaltString;

    use super::*;

    fn hash(password: &str) -> String {
        let salt = SaltString::from_b64("c29tZXNhbHRzb21l").unwrap();
        Argon2::default().hash_password(password.as_bytes(), &salt).unwrap().to_string()
    }

    #[test]
    fn the_right_password_logs_in_the_first_time_and_from_memory() {
        let users = parse(Path::new("users"), &format!("# people\n\nanna:{}\n", hash("secret"))).unwrap();
        let authenticator = Authenticator { users, open_guest: false, key: [7; 32], verified: Mutex::default() };
        for _ in 0..2 {
            assert!(authenticator.verify(b"anna", b"secret"));
            assert!(!authenticator.verify(b"anna", b"wrong"));
            assert!(!authenticator.verify(b"guest", b"guest"));
            assert!(!authenticator.verify(b"\xff", b"secret"));
        }
        assert_eq!(authenticator.remembered().len(), 1);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_by_its_line() {
        let good = hash("x");
        for (text, expected) in [
            ("anna", "line 1: no colon"),
            ("\nanna:plain", "line 2:"),
            (&format!("anna:{good}\nanna:{good}"), "line 2: the name is empty or stands twice"),
            ("# nobody", "names no user"),
        ] {
            let error = parse(Path::new("users"), text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
