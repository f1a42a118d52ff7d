//! `understudy dev` as a process, with shell scripts for brokers: what it starts, restarts, prints and stops. Failover with
//! real brokers is tested where these are built.

#![allow(clippy::unwrap_used, reason = "a failed step of a test's preparation fails the test")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far beyond what any step takes.
const SOON: Duration = Duration::from_secs(30);

struct Dev {
    child: Child,
    lines: mpsc::Receiver<String>,
}

/// Asked to stop, not killed: these brokers do not notice that their supervisor is gone.
impl Drop for Dev {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(self.pid(), "-TERM");
            let _ = self.child.wait();
        }
    }
}

fn script(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("broker");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn dev(dir: &Path, broker: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_understudy"));
    command.args(["dev", "--json", "--replicas", "2", "--amqp-port", "0", "--dir"]).arg(dir.join("cluster"));
    command.arg("--broker-bin").arg(broker);
    command
}

fn start(dir: &Path, broker: &Path) -> Dev {
    let mut child = dev(dir, broker).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    Dev { child, lines }
}

impl Dev {
    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line, which must be a start: the broker's name and its process.
    fn started(&self) -> (String, i32) {
        let line = self.lines.recv_timeout(SOON).expect("a line in time");
        let line: Value = serde_json::from_str(&line).expect("JSON on every line");
        assert_eq!(line["event"], "started", "{line}");
        (line["name"].as_str().unwrap().into(), line["pid"].as_i64().unwrap().try_into().unwrap())
    }

    fn signal(&self, pid: i32, signal: &str) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }
}

fn runs(pid: i32) -> bool {
    Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

fn await_end(pid: i32) {
    let deadline = Instant::now() + SOON;
    while runs(pid) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn brokers_are_started_restarted_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let broker = script(dir.path(), "exec sleep 300");
    let mut dev = start(dir.path(), &broker);
    let mut started = [dev.started(), dev.started()];
    started.sort();
    assert_eq!(started.each_ref().map(|(name, _)| name.as_str()), ["dev-0", "dev-1"]);

    dev.signal(started[0].1, "-9");
    let (name, pid) = dev.started();
    assert_eq!(name, "dev-0");
    assert_ne!(pid, started[0].1);
    let file: Value = serde_json::from_slice(&std::fs::read(dir.path().join("cluster/cluster.json")).unwrap()).unwrap();
    assert_eq!(file["brokers"].as_array().unwrap().len(), 2);

    dev.signal(dev.pid(), "-TERM");
    assert!(dev.child.wait().unwrap().success());
    await_end(pid);
    await_end(started[1].1);
    assert!(dev.lines.recv_timeout(SOON).is_err(), "nothing more is told");
}

#[test]
fn a_kept_directory_is_started_again_on() {
    let dir = tempfile::tempdir().unwrap();
    let broker = script(dir.path(), "exec sleep 300");
    let key = || std::fs::read(dir.path().join("cluster/tls/tls.key")).unwrap();
    let mut first = start(dir.path(), &broker);
    first.started();
    let before = key();
    first.signal(first.pid(), "-INT");
    assert!(first.child.wait().unwrap().success());
    let second = start(dir.path(), &broker);
    second.started();
    assert_eq!(key(), before);
}

#[test]
fn mistakes_are_named_and_nothing_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let broker = script(dir.path(), "exec sleep 300");
    let refused = |arguments: &[&str]| {
        let output = dev(dir.path(), &broker).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--min-in-sync", "3"]).contains("between 1 and the number of replicas, 2"));
    let running = start(dir.path(), &broker);
    running.started();
    assert!(refused(&[]).contains("another `understudy dev` is at work"));
}
