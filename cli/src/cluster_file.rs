//! `cluster.json`: what `understudy dev` leaves in its directory so that others find its brokers: names, ports, process
//! ids, where the certificates are. A convenience for `understudy status`; nothing is decided by it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "cluster.json";
/// A file of this kind with nine brokers has 4 KiB; more is not ours.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterFile {
    /// The supervisor's process.
    pub(crate) pid: u32,
    pub(crate) cluster: String,
    pub(crate) min_in_sync: u8,
    pub(crate) durability: String,
    pub(crate) tls_dir: PathBuf,
    pub(crate) lease_dir: PathBuf,
    pub(crate) brokers: Vec<BrokerEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BrokerEntry {
    pub(crate) name: String,
    /// Absent between a broker's death and its restart.
    pub(crate) pid: Option<u32>,
    pub(crate) amqp: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterFileError {
    #[error("{path} is missing: no `understudy dev --dir {dir}` has run here", dir = dir.display(), path = path.display())]
    Missing { dir: PathBuf, path: PathBuf },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{} is not a cluster file of `understudy dev`: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
}

impl ClusterFile {
    pub(crate) fn read(dir: &Path) -> Result<Self, ClusterFileError> {
        let path = dir.join(FILE);
        let read = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => ClusterFileError::Missing { dir: dir.into(), path: path.clone() },
            _ => ClusterFileError::Read { path: path.clone(), source },
        };
        let malformed = |reason: String| ClusterFileError::Malformed { path: path.clone(), reason };
        let bytes = std::fs::metadata(&path).map_err(read)?.len();
        if bytes > MAX_BYTES {
            return Err(malformed(format!("{bytes} bytes are more than {MAX_BYTES}")));
        }
        let text = std::fs::read(&path).map_err(read)?;
        serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))
    }

    /// In one rename, so that a reader never sees half of it.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), ClusterFileError> {
        let path = dir.join(FILE);
        let unfinished = dir.join(".cluster.json.new");
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ClusterFileError::Malformed { path: path.clone(), reason: error.to_string() })?;
        std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, &path))
            .map_err(|source| ClusterFileError::Write { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_ours_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ClusterFile::read(dir.path()).unwrap_err().to_string().contains("understudy dev --dir"));
        let file = ClusterFile {
            pid: 7,
            cluster: "dev".into(),
            min_in_sync: 2,
            durability: "fsync".into(),
            tls_dir: dir.path().join("tls"),
            lease_dir: dir.path().join("lease"),
            brokers: vec![BrokerEntry {
                name: "dev-0".into(),
                pid: None,
                amqp: ([127, 0, 0, 1], 5672).into(),
                grpc: ([127, 0, 0, 1], 7672).into(),
                http: ([127, 0, 0, 1], 15692).into(),
                data_dir: dir.path().join("dev-0"),
                log: dir.path().join("dev-0.log"),
            }],
        };
        file.write(dir.path()).unwrap();
        assert_eq!(ClusterFile::read(dir.path()).unwrap(), file);
        std::fs::write(dir.path().join(FILE), b"{\"pid\": \"x\"").unwrap();
        assert!(matches!(ClusterFile::read(dir.path()), Err(ClusterFileError::Malformed { .. })));
    }
}
