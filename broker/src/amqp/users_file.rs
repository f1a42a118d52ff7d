//! The file of users, one a line: `name:hash`. It is looked at every few seconds, by content, as the kubelet swaps it; what has
//! changed counts for those who log in from then on, if it makes sense, and what was there before goes on if it does not.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::PasswordHash;
use tokio::sync::watch;

/// Between two looks at the file.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Users in the file at most; it is one cluster's, not a directory.
const MAX_USERS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("cannot read the users file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}, line {line}: {what}; each line is name:hash with the hash in PHC form ($argon2id$…)", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{} names no user, so nobody could log in", path.display())]
    Empty { path: PathBuf },
}

pub(super) struct UsersFile {
    path: PathBuf,
    current: watch::Sender<Arc<HashMap<String, String>>>,
}

impl UsersFile {
    /// # Errors
    /// If it cannot be read, or makes no sense, now.
    pub(super) fn read(path: &Path) -> Result<Self, UsersError> {
        Ok(Self { path: path.to_owned(), current: watch::Sender::new(Arc::new(read(path)?)) })
    }

    /// Names and hashes.
    pub(super) fn users(&self) -> Arc<HashMap<String, String>> {
        self.current.borrow().clone()
    }

    /// Looks again and again.
    pub(super) async fn keep_up(&self) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let path = self.path.clone();
            let Ok(users) = tokio::task::spawn_blocking(move || read(&path)).await else { return };
            match users {
                Ok(users) => {
                    told = None;
                    if self.take(users) {
                        tracing::info!("the users of {} have changed", self.path.display());
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        tracing::error!("the changed users cannot be used, those before go on: {text}");
                        told = Some(text);
                    }
                }
            }
        }
    }

    fn take(&self, users: HashMap<String, String>) -> bool {
        self.current.send_if_modified(|current| {
            let changed = **current != users;
            if changed {
                *current = Arc::new(users);
            }
            changed
        })
    }
}

fn read(path: &Path) -> Result<HashMap<String, String>, UsersError> {
    let text = std::fs::read_to_string(path);
    parse(path, &text.map_err(|source| UsersError::Read { path: path.into(), source })?)
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
impl UsersFile {
    pub(super) fn of(text: &str) -> Self {
        let users = parse(Path::new("users"), text).unwrap();
        Self { path: "users".into(), current: watch::Sender::new(Arc::new(users)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_taken_and_said_once() {
        let file = UsersFile::of("anna:$argon2id$v=19$m=16,t=1,p=1$c29tZXNhbHQ$OSdFbP0HzjsOSdFbP0HzjsAA");
        let other =
            parse(Path::new("users"), "bob:$argon2id$v=19$m=16,t=1,p=1$c29tZXNhbHQ$OSdFbP0HzjsOSdFbP0HzjsAA").unwrap();
        assert!(file.users().contains_key("anna"));
        assert!(file.take(other.clone()) && !file.take(other));
        assert!(file.users().contains_key("bob") && !file.users().contains_key("anna"));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_by_its_line() {
        let good = "$argon2id$v=19$m=16,t=1,p=1$c29tZXNhbHQ$OSdFbP0HzjsOSdFbP0HzjsAA";
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
