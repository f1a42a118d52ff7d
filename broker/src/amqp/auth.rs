//! Who may log in: the users of the file, one a line with the password as an argon2id hash; those that the log has; and, where
//! there is no file, `guest` with the password `guest`, until a record names it. A name in the file is the file's alone.
//! Passwords are never kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::password_hash::PasswordHash;
use argon2::{Argon2, PasswordVerifier};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};
use tokio::sync::watch;
use understudy_core::{Account, GUEST, Login};
use understudy_record::{HashAlgorithm, ShortStr};

use super::users_file::{UsersError, UsersFile};
use crate::config::Users;

/// Logins that were verified are remembered, so that a storm of reconnects costs no storm of argon2. A keyed digest is
/// kept, with a key that lives as long as the process.
const REMEMBERED: usize = 4096;

/// Before the digest, in RabbitMQ's hashes.
const SALT_BYTES: usize = 4;

pub(crate) struct Authenticator {
    /// Of the file, if there is one.
    file: Option<UsersFile>,
    open_guest: bool,
    /// Of the log.
    login: watch::Receiver<Arc<Login>>,
    key: [u8; 32],
    verified: Mutex<HashMap<[u8; 32], ()>>,
}

impl Authenticator {
    pub(crate) fn read(users: &Users, login: watch::Receiver<Arc<Login>>) -> Result<Self, UsersError> {
        let file = match users {
            Users::OpenGuest => None,
            Users::File(path) => Some(UsersFile::read(path)?),
        };
        Ok(Self { open_guest: file.is_none(), file, login, key: rand::random(), verified: Mutex::default() })
    }

    /// Takes up what changes in the file, for as long as the process lives.
    pub(crate) async fn keep_up(self: Arc<Self>) {
        if let Some(file) = &self.file {
            file.keep_up().await;
        }
    }

    /// Of the file.
    fn hash_of(&self, name: &str) -> Option<String> {
        self.file.as_ref()?.users().get(name).cloned()
    }

    /// Where the user is known from, if it is, for one whose name somebody else has proved.
    pub(crate) fn account_of(&self, user: &str) -> Option<Account> {
        if self.hash_of(user).is_some() {
            return Some(Account::Elsewhere);
        }
        let login = self.login.borrow();
        if ShortStr::try_from(user).is_ok_and(|name| login.users.contains_key(&name)) {
            return Some(Account::Recorded);
        }
        (self.open_guest && login.has_open_guest && user == GUEST).then_some(Account::OpenGuest)
    }

    /// Whether [`Self::verify`] takes no time: it has been found right before, or nothing has to be hashed by argon2.
    pub(crate) fn is_quick(&self, user: &[u8], password: &[u8]) -> bool {
        let Ok(name) = std::str::from_utf8(user) else { return true };
        let is_remembered = |hash: &str| self.remembered().contains_key(&self.digest(hash, password));
        if let Some(hash) = self.hash_of(name) {
            return is_remembered(&hash);
        }
        let login = self.login.borrow().clone();
        match ShortStr::try_from(name).ok().and_then(|name| login.users.get(&name)) {
            Some(hash) if hash.algorithm == HashAlgorithm::Argon2id => is_remembered(&hash.text),
            _ => true,
        }
    }

    /// Where the user is known from, if it is and this is its password. Takes tens of milliseconds the first time: not for an
    /// async task's own thread.
    pub(crate) fn verify(&self, user: &[u8], password: &[u8]) -> Option<Account> {
        let name = std::str::from_utf8(user).ok()?;
        if let Some(hash) = self.hash_of(name) {
            return self.is_argon2(&hash, password).then_some(Account::Elsewhere);
        }
        let login = self.login.borrow().clone();
        if let Some(hash) = ShortStr::try_from(name).ok().and_then(|name| login.users.get(&name)) {
            // Where a hash was brought from elsewhere, an empty password may have one: nobody logs in by it.
            return (!password.is_empty() && self.is_right(hash, password)).then_some(Account::Recorded);
        }
        let open_guest = self.open_guest && login.has_open_guest;
        (open_guest && name == GUEST && password == GUEST.as_bytes()).then_some(Account::OpenGuest)
    }

    fn is_right(&self, hash: &understudy_record::PasswordHash, password: &[u8]) -> bool {
        match hash.algorithm {
            HashAlgorithm::Argon2id => self.is_argon2(&hash.text, password),
            HashAlgorithm::RabbitSha256 => is_salted::<Sha256>(&hash.text, password),
            HashAlgorithm::RabbitSha512 => is_salted::<Sha512>(&hash.text, password),
        }
    }

    fn is_argon2(&self, hash: &str, password: &[u8]) -> bool {
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

/// RabbitMQ's: the base 64 of a salt and the digest of salt and password.
fn is_salted<D: Digest>(hash: &str, password: &[u8]) -> bool {
    let Ok(bytes) = STANDARD.decode(hash) else { return false };
    let Some((salt, digest)) = bytes.split_at_checked(SALT_BYTES) else { return false };
    let found = D::new().chain_update(salt).chain_update(password).finalize();
    // In a time that says nothing of where they differ.
    digest.len() == found.len() && digest.iter().zip(&found).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

/// Whether a password could be verified against it.
///
/// # Errors
/// Why it could not.
pub(crate) fn check_hash(hash: &understudy_record::PasswordHash) -> Result<(), String> {
    let of_octets = |octets: usize| match STANDARD.decode(&hash.text) {
        Ok(bytes) if bytes.len() == SALT_BYTES + octets => Ok(()),
        Ok(bytes) => Err(format!("a password hash of {} octets, not {}", bytes.len(), SALT_BYTES + octets)),
        Err(error) => Err(format!("a password hash that is no base 64: {error}")),
    };
    match hash.algorithm {
        _ if hash.text.is_empty() => Ok(()), // nobody's
        HashAlgorithm::Argon2id => match PasswordHash::new(&hash.text) {
            Ok(parsed) if parsed.algorithm.as_str().starts_with("argon2") => Ok(()),
            Ok(parsed) => Err(format!("a password hash by {}, not argon2", parsed.algorithm)),
            Err(error) => Err(format!("a password hash that makes no sense: {error}")),
        },
        HashAlgorithm::RabbitSha256 => of_octets(32),
        HashAlgorithm::RabbitSha512 => of_octets(64),
    }
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

    fn authenticator(file: &str, open_guest: bool, login: Login) -> Authenticator {
        let file = (!file.is_empty()).then(|| UsersFile::of(file));
        let (_, login) = watch::channel(Arc::new(login));
        Authenticator { file, open_guest, login, key: [7; 32], verified: Mutex::default() }
    }

    fn recorded(users: &[(&str, HashAlgorithm, &str)]) -> Login {
        let users = users.iter().map(|(name, algorithm, text)| {
            let hash = understudy_record::PasswordHash { algorithm: *algorithm, text: (*text).to_owned() };
            (ShortStr::try_from(*name).unwrap(), hash)
        });
        Login { users: users.collect(), has_open_guest: true }
    }

    #[test]
    fn the_right_password_logs_in_the_first_time_and_from_memory() {
        let file = format!("# people\n\nanna:{}\n", hash("secret"));
        let authenticator = authenticator(&file, false, recorded(&[]));
        for _ in 0..2 {
            assert_eq!(authenticator.verify(b"anna", b"secret"), Some(Account::Elsewhere));
            assert_eq!(authenticator.verify(b"anna", b"wrong"), None);
            assert_eq!(authenticator.verify(b"guest", b"guest"), None, "there is a file");
            assert_eq!(authenticator.verify(b"\xff", b"secret"), None);
        }
        assert_eq!(authenticator.remembered().len(), 1);
    }

    /// The hashes are RabbitMQ 3.10.8's, of `secret`, of an empty password, and of `guest`.
    #[test]
    fn users_of_the_log_log_in_by_their_hashes_and_a_name_in_the_file_is_the_files() {
        let argon2 = hash("secret");
        let users = [
            ("anna", HashAlgorithm::RabbitSha256, "ue2y00e/o4F4ukIPIdP/sTfcnRMBYCt0WbuKAuIaQwg+qffz"),
            ("bob", HashAlgorithm::RabbitSha256, "TBdNVaBFLdJclGxsAy7mW62a632Fv7hlNi5TIZJlWvFKXhD8"),
            ("carl", HashAlgorithm::Argon2id, &argon2),
            ("dora", HashAlgorithm::Argon2id, ""),
            ("erna", HashAlgorithm::RabbitSha512, "ue2y00e/o4F4ukIPIdP/sTfcnRMBYCt0WbuKAuIaQwg+qffz"),
        ];
        let alone = authenticator("", true, recorded(&users));
        for (user, password, expected) in [
            ("anna", "secret", Some(Account::Recorded)),
            ("anna", "Secret", None),
            ("bob", "", None),
            ("carl", "secret", Some(Account::Recorded)),
            ("dora", "", None),
            ("dora", "secret", None),
            ("erna", "secret", None),
            ("guest", "guest", Some(Account::OpenGuest)),
            ("guest", "secret", None),
        ] {
            assert_eq!(alone.verify(user.as_bytes(), password.as_bytes()), expected, "{user} {password}");
        }
        let beside = authenticator(&format!("anna:{}", hash("other")), false, recorded(&users));
        assert_eq!(beside.verify(b"anna", b"secret"), None);
        assert_eq!(beside.verify(b"anna", b"other"), Some(Account::Elsewhere));
        assert_eq!(beside.verify(b"carl", b"secret"), Some(Account::Recorded));
        let guest = [("guest", HashAlgorithm::RabbitSha256, "Rllq/a44LNw5CQgvD9T8b2DQnOPV4K3i0S41vEZ2AkEauyU0")];
        assert_eq!(authenticator("", true, recorded(&guest)).verify(b"guest", b"guest"), Some(Account::Recorded));
        let gone = Login { has_open_guest: false, ..recorded(&[]) };
        assert_eq!(authenticator("", true, gone).verify(b"guest", b"guest"), None);
    }

    #[test]
    fn what_no_password_could_be_verified_against_is_refused() {
        let check =
            |algorithm, text: &str| check_hash(&understudy_record::PasswordHash { algorithm, text: text.into() });
        let sha256 = "TBdNVaBFLdJclGxsAy7mW62a632Fv7hlNi5TIZJlWvFKXhD8";
        assert!(check(HashAlgorithm::RabbitSha256, sha256).is_ok());
        assert!(check(HashAlgorithm::Argon2id, &hash("x")).is_ok());
        assert!(check(HashAlgorithm::RabbitSha512, "").is_ok());
        for (algorithm, text, why) in [
            (HashAlgorithm::RabbitSha512, sha256, "36 octets, not 68"),
            (HashAlgorithm::RabbitSha256, "no base 64!", "no base 64"),
            (HashAlgorithm::Argon2id, sha256, "makes no sense"),
        ] {
            let error = check(algorithm, text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
