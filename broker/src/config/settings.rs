//! The settings file: what may change without a restart, a line each, `name=value`. It is looked at every few seconds, by
//! content, as the kubelet swaps it; what is not in it is as the command line says.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use understudy_node::Settings;

use super::Peers;

/// Between two looks at the file.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Three lines and some comments; what is longer is another file.
const MAX_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read --settings-file {}: {what}", path.display())]
    Read { path: PathBuf, what: String },
    #[error("{}, line {line}: {what}; a line is replicas=N, min-in-sync=N or consumer-timeout-ms=N", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{}: min-in-sync is {min_in_sync}; it must be between 1 and the number of replicas, {replicas}", path.display())]
    MinInSync { path: PathBuf, min_in_sync: usize, replicas: usize },
}

#[derive(Clone, Debug)]
pub struct SettingsFile {
    pub(super) path: PathBuf,
    pub(super) cluster: String,
    pub(super) peers: Peers,
    /// By the command line.
    pub(super) options: Settings,
}

impl SettingsFile {
    /// # Errors
    /// If it cannot be read, or makes no sense, now.
    pub(super) fn read(&self) -> Result<Settings, SettingsError> {
        let read_error = |what: String| SettingsError::Read { path: self.path.clone(), what };
        let size = std::fs::metadata(&self.path).map_err(|error| read_error(error.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(read_error(format!("it has {size} bytes, more than {MAX_BYTES}")));
        }
        self.parse(&std::fs::read_to_string(&self.path).map_err(|error| read_error(error.to_string()))?)
    }

    fn parse(&self, text: &str) -> Result<Settings, SettingsError> {
        let mut settings = self.options.clone();
        for (place, line) in text.lines().enumerate() {
            let line_error = |what: String| SettingsError::Line { path: self.path.clone(), line: place + 1, what };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, value)) = line.split_once('=') else { return Err(line_error("no =".into())) };
            let number: u32 =
                value.trim().parse().map_err(|_| line_error(format!("{value:?} is not a number that is allowed")))?;
            match name.trim() {
                // As many as a spec may ask for.
                "replicas" if !(1..=9).contains(&number) => {
                    return Err(line_error(format!("replicas is {number}; it must be between 1 and 9")));
                }
                "replicas" => settings.replicas = self.peers.replicas(&self.cluster, number as usize),
                "min-in-sync" => settings.min_in_sync = number as usize,
                "consumer-timeout-ms" => settings.consumer_timeout = Duration::from_millis(number.into()),
                other => return Err(line_error(format!("nothing is called {other:?}"))),
            }
        }
        let (min_in_sync, replicas) = (settings.min_in_sync, settings.replicas.len());
        match min_in_sync == 0 || min_in_sync > replicas {
            true => Err(SettingsError::MinInSync { path: self.path.clone(), min_in_sync, replicas }),
            false => Ok(settings),
        }
    }

    /// Looks again and again, for as long as the process lives, and tells what has changed.
    pub(crate) async fn keep_up(self, current: watch::Sender<Settings>) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let own = self.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || own.read()).await else { return };
            match read {
                Ok(settings) => {
                    told = None;
                    let changed = current.send_if_modified(|current| {
                        let changed = *current != settings;
                        *current = settings;
                        changed
                    });
                    if changed {
                        tracing::info!(settings = ?*current.borrow(), "{} has changed", self.path.display());
                    }
                }
                Err(error) if told.as_ref() != Some(&error) => {
                    tracing::error!("the changed settings cannot be used, those before go on: {error}");
                    told = Some(error);
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> SettingsFile {
        let peers = Peers::Pattern("{name}.nodes:1".into());
        let options = Settings {
            replicas: peers.replicas("orders", 3),
            min_in_sync: 2,
            consumer_timeout: Duration::from_secs(60),
        };
        SettingsFile { path: "settings".into(), cluster: "orders".into(), peers, options }
    }

    #[test]
    fn what_it_says_counts_and_the_rest_stays() {
        let settings = file().parse("# by the operator\nreplicas = 5\n\nmin-in-sync=3\n").unwrap();
        assert_eq!((settings.replicas.len(), settings.min_in_sync), (5, 3));
        assert_eq!(settings.replicas[4].as_str(), "orders-4");
        assert_eq!(settings.consumer_timeout, Duration::from_secs(60));
        assert_eq!(file().parse("consumer-timeout-ms=0").unwrap().consumer_timeout, Duration::ZERO);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_line() {
        for (text, expected) in [
            ("replicas", "line 1: no ="),
            ("\nreplicas=many", "line 2: \"many\" is not a number"),
            ("replicas=0", "line 1: replicas is 0"),
            ("replicas=4000000000", "line 1: replicas is 4000000000"),
            ("min-in-sync=-1", "line 1:"),
            ("min_in_sync=1", "line 1: nothing is called \"min_in_sync\""),
            ("min-in-sync=0", "min-in-sync is 0; it must be between 1 and the number of replicas, 3"),
            ("replicas=1", "min-in-sync is 2; it must be between 1 and the number of replicas, 1"),
        ] {
            let error = file().parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
