//! A disk that a test can fill: a file system in memory, mounted in a namespace of its own that ends with the test. Where a
//! test may not make one (a container without the right), it says so and is skipped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A mount namespace with a small disk at one directory; it lives as long as its first process.
pub(crate) struct SmallDisk {
    holder: Child,
}

impl SmallDisk {
    /// `None`, with a printed reason, where that is not allowed.
    pub(crate) fn mount(at: &Path, megabytes: u32) -> Option<Self> {
        let script = format!(
            "mount -t tmpfs -o size={megabytes}m tmpfs '{}' && echo mounted && exec sleep infinity",
            at.display()
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--user", "--map-root-user", "sh", "-c", &script]);
        let spawned = unshare.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let Ok(mut holder) = spawned else {
            eprintln!("skipped: no `unshare` to make a small disk with");
            return None;
        };
        let mut line = String::new();
        let output = holder.stdout.take().expect("it is piped");
        _ = BufReader::new(output).read_line(&mut line);
        let disk = Self { holder };
        if line.trim() != "mounted" {
            eprintln!("skipped: a small disk cannot be mounted here");
            return None;
        }
        Some(disk)
    }

    /// What a command must be run through to see the disk.
    pub(crate) fn enter(&self) -> Vec<String> {
        let target = format!("--target={}", self.holder.id());
        ["nsenter", &target, "--user", "--mount", "--preserve-credentials"].map(String::from).into()
    }

    pub(crate) fn resize(&self, at: &Path, megabytes: u32) {
        let options = format!("remount,size={megabytes}m");
        self.run(&["mount", "-o", &options, &at.display().to_string()]);
    }

    /// Somebody else's file, all zeros, of that size: none if it is 0.
    pub(crate) fn put_file(&self, path: &Path, megabytes: u32) {
        let path = path.display().to_string();
        if megabytes == 0 {
            return self.run(&["rm", &path]);
        }
        self.run(&["dd", "if=/dev/zero", &format!("of={path}"), "bs=1M", &format!("count={megabytes}"), "status=none"]);
    }

    fn run(&self, line: &[&str]) {
        let enter = self.enter();
        let status = Command::new(&enter[0]).args(&enter[1..]).args(line).status().unwrap();
        assert!(status.success(), "{line:?} in the namespace of a small disk: {status}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = self.holder.kill();
        _ = self.holder.wait();
    }
}
