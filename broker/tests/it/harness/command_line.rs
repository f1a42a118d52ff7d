//! `understudy`, the command line, on a cluster of a test: as if an `understudy dev` had left its directory there.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Cluster, loopback};

impl Cluster {
    /// What it prints, or how it says no.
    pub(crate) fn understudy(&self, arguments: &[&str]) -> Result<String, String> {
        self.understudy_with(arguments, "")
    }

    /// The same with something on its standard input.
    pub(crate) fn understudy_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_understudy-broker")).with_file_name("understudy");
        assert!(program.exists(), "{} is not there: `cargo build -p understudy` builds it", program.display());
        let dir = self.root.path();
        let brokers = self.brokers.iter().map(|broker| {
            let settings = &broker.settings;
            json!({
                "name": settings.name, "pid": broker.pid(), "amqp": loopback(settings.amqp),
                "grpc": loopback(settings.grpc), "http": loopback(settings.http), "data_dir": settings.data,
                "log": settings.log,
            })
        });
        let file = json!({
            "pid": std::process::id(), "cluster": "test", "min_in_sync": 2, "durability": "fsync",
            "tls_dir": dir.join("tls"), "lease_dir": dir.join("lease"), "brokers": brokers.collect::<Vec<_>>(),
        });
        std::fs::write(dir.join("cluster.json"), file.to_string()).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).arg("--dir").arg(dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // One that needs nothing may have ended by then.
        _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }
}
