//! What clients answer to `connection.start`: names and passwords in PLAIN or AMQPLAIN. Whether they are right is not known
//! here. With EXTERNAL a client says nothing that counts: who it is was found out by what carries the connection.

use bytes::Bytes;

use crate::table::FieldTable;
use crate::wire::{Field, Reader};

pub const EXTERNAL: &str = "EXTERNAL";

/// Not checked yet. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: Bytes,
    pub password: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    #[error("unknown authentication mechanism {0:?}")]
    UnknownMechanism(String),
    #[error("malformed {0} response")]
    Malformed(&'static str),
}

/// Reads the response of `connection.start-ok`.
///
/// # Errors
/// If the mechanism is another one, or the response is not of its form.
pub fn parse(mechanism: &[u8], response: &Bytes) -> Result<Credentials, SaslError> {
    match mechanism {
        b"PLAIN" => parse_plain(response).ok_or(SaslError::Malformed("PLAIN")),
        b"AMQPLAIN" => parse_amqplain(response).ok_or(SaslError::Malformed("AMQPLAIN")),
        other => Err(SaslError::UnknownMechanism(String::from_utf8_lossy(other).into_owned())),
    }
}

/// A PLAIN response (RFC 4616), without an authorization identity.
pub fn plain(user: &str, password: &str) -> Bytes {
    Bytes::from(format!("\0{user}\0{password}"))
}

/// `[authorization identity] NUL user NUL password`. Nobody acts for another here, so the first must be empty.
fn parse_plain(response: &Bytes) -> Option<Credentials> {
    let mut parts = response.split(|octet| *octet == 0);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some([]), Some(user), Some(password), None) => {
            Some(Credentials { user: response.slice_ref(user), password: response.slice_ref(password) })
        }
        _ => None,
    }
}

/// The entries of a field table, without the length in front.
fn parse_amqplain(response: &Bytes) -> Option<Credentials> {
    let length = u32::try_from(response.len()).ok()?;
    let with_length = Bytes::from([&length.to_be_bytes(), response.as_ref()].concat());
    let table = FieldTable::read(&mut Reader::new(&with_length)).ok()?;
    let entry = |name| table.get(name)?.as_bytes().cloned();
    Some(Credentials { user: entry("LOGIN")?, password: entry("PASSWORD")? })
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_amqplain_say_the_same() {
        let expected = Credentials { user: "guest".into(), password: "säkret".into() };
        assert_eq!(parse(b"PLAIN", &plain("guest", "säkret")), Ok(expected.clone()));
        let table = FieldTable::new().with("LOGIN", "guest").with("PASSWORD", "säkret");
        assert_eq!(parse(b"AMQPLAIN", &table.to_bytes().slice(4..)), Ok(expected.clone()));
        assert!(!format!("{expected:?}").contains("kret"));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for response in ["", "guest", "\0guest", "\0a\0b\0c", "other\0guest\0guest"] {
            assert_eq!(parse(b"PLAIN", &Bytes::from(response)), Err(SaslError::Malformed("PLAIN")), "{response:?}");
        }
        for response in [&b""[..], b"\x05LOGIN", b"\x05LOGINS\0\0\0\x09x"] {
            assert_eq!(parse(b"AMQPLAIN", &Bytes::from(response)), Err(SaslError::Malformed("AMQPLAIN")));
        }
        assert_eq!(parse(b"EXTERNAL", &Bytes::new()), Err(SaslError::UnknownMechanism("EXTERNAL".into())));
    }
}
