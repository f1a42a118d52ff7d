//! One broker process: how it is started, what it says, how it is signalled and ended.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Places, await_some, await_true, free_ports, write_certificates};

/// An answer over HTTP takes microseconds, except from a process that is stopped.
const HTTP_TIMEOUT: Duration = Duration::from_millis(500);

/// What a failed test shows of a log.
const LAST_LINES: usize = 40;

/// Everything a broker is started with. Tests change what they are about.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The build.
    pub(crate) program: PathBuf,
    pub(crate) name: String,
    pub(crate) amqp: u16,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
    pub(crate) data: PathBuf,
    pub(crate) lease: PathBuf,
    pub(crate) tls: PathBuf,
    pub(crate) log: PathBuf,
    /// Every replica with its gRPC port.
    pub(crate) peers: Vec<(String, u16)>,
    pub(crate) min_in_sync: usize,
    pub(crate) lease_duration_ms: u64,
    pub(crate) backup_timeout_ms: u64,
    /// Low, so that whatever a test does its replicas are compared.
    pub(crate) scrub_interval_ms: u64,
    /// The test is about states that differ: nowhere else may one be found.
    pub(crate) may_differ: bool,
    /// `None`: `--open-guest`.
    pub(crate) users_file: Option<PathBuf>,
    /// No port without TLS.
    pub(crate) tls_only: bool,
    pub(crate) extra: Vec<String>,
    /// Runs before the broker's own command line, and becomes it: a namespace to enter.
    pub(crate) through: Vec<String>,
}

impl Settings {
    /// The only replica of a cluster, under `root`.
    pub(crate) fn single(root: &Path) -> Self {
        let [amqp, grpc, http] = free_ports();
        let name = "solo-0".to_owned();
        Self {
            program: env!("CARGO_BIN_EXE_understudy-broker").into(),
            peers: vec![(name.clone(), grpc)],
            log: root.join("solo-0.log"),
            data: root.join("data"),
            lease: root.join("lease"),
            tls: root.join("tls"),
            min_in_sync: 1,
            lease_duration_ms: 1500,
            backup_timeout_ms: 800,
            scrub_interval_ms: 200,
            may_differ: false,
            users_file: None,
            tls_only: false,
            extra: Vec::new(),
            through: Vec::new(),
            name,
            amqp,
            grpc,
            http,
        }
    }

    fn command(&self) -> Command {
        let program = self.program.to_str().expect("the build's directory has a name of text");
        let mut line = self.through.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(line.next().expect("the broker's own path at least"));
        command.args(line);
        let peers: Vec<_> = self.peers.iter().map(|(name, port)| format!("{name}=127.0.0.1:{port}")).collect();
        let shown = |path: &Path| path.display().to_string();
        let options = [
            ("--name", self.name.clone()),
            ("--cluster", "test".to_owned()),
            ("--data-dir", shown(&self.data)),
            ("--amqp-listen", if self.tls_only { "none".into() } else { loopback(self.amqp).to_string() }),
            ("--grpc-listen", loopback(self.grpc).to_string()),
            ("--http-listen", loopback(self.http).to_string()),
            ("--peers", peers.join(",")),
            ("--replicas", self.peers.len().to_string()),
            ("--min-in-sync", self.min_in_sync.to_string()),
            ("--lease", format!("local:{}", self.lease.display())),
            ("--lease-duration-ms", self.lease_duration_ms.to_string()),
            ("--backup-timeout-ms", self.backup_timeout_ms.to_string()),
            ("--scrub-interval-ms", self.scrub_interval_ms.to_string()),
            ("--tls-dir", shown(&self.tls)),
        ];
        options.iter().for_each(|(option, value)| _ = command.arg(option).arg(value));
        match &self.users_file {
            Some(file) => command.arg("--users-file").arg(file),
            None => command.arg("--open-guest"),
        };
        command.args(&self.extra).arg("--exit-with-parent");
        command
    }

    /// The process, whatever becomes of it. Its log is appended to.
    pub(crate) fn start(&self) -> Broker {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        Broker { settings: self.clone(), child, ended: None }
    }

    /// Starts a broker that cannot work, and returns the error that it ends with: the last line of its log, which must be
    /// one line, and the exit code must say so too.
    #[track_caller]
    pub(crate) fn fails(&self) -> String {
        let mut broker = self.start();
        let status = broker.await_end();
        let log = broker.log();
        assert!(!status.success(), "it ended with {status}:\n{log}");
        assert!(status.code().is_some(), "it ended by a signal, {status}:\n{log}");
        let errors: Vec<_> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        let last = log.lines().last().unwrap_or_default();
        assert_eq!(errors.last(), Some(&last), "the last line is no error:\n{log}");
        last.to_owned()
    }
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A single replica, with the directory it lives in.
pub(crate) struct Single {
    broker: Broker,
    pub(crate) root: TempDir,
    _places: Places,
}

impl Single {
    /// Ready on return.
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let places = Places::take(1);
        let root = tempfile::tempdir().unwrap();
        write_certificates(&root.path().join("tls"));
        let mut settings = Settings::single(root.path());
        change(&mut settings);
        let broker = settings.start();
        broker.await_ready();
        Self { broker, root, _places: places }
    }
}

impl Deref for Single {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}

impl DerefMut for Single {
    fn deref_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }
}

/// A running process. Dropping it kills the process and looks whether it panicked.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) settings: Settings,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Broker {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn amqp(&self) -> SocketAddr {
        loopback(self.settings.amqp)
    }

    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(&self.settings.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) {
        await_true(&format!("{} says {text:?} in its log", self.settings.name), || self.log().contains(text));
    }

    /// The body of an answer with status 200.
    pub(crate) fn http(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect_timeout(&loopback(self.settings.http), HTTP_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(HTTP_TIMEOUT)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.contains(" 200 ").then(|| body.to_owned())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.http("/readyz").is_some()
    }

    #[track_caller]
    pub(crate) fn await_ready(&self) {
        await_true(&format!("{} is ready; its log:\n{}", self.settings.name, self.log()), || self.is_ready());
    }

    /// One of its numbers for Prometheus.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let text = self.http("/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("understudy_{name} ")))?;
        line.parse::<f64>().ok().map(|value| value as u64)
    }

    #[track_caller]
    pub(crate) fn await_metric(&self, name: &str, value: u64) {
        await_true(&format!("{} has {name} at {value}", self.settings.name), || self.metric(name) == Some(value));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        // It may have ended by itself; who expects otherwise sees it by what follows.
        _ = kill_process(pid, signal);
    }

    /// `kill -9`; it is gone on return.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended.get_or_insert(self.child.wait().unwrap());
    }

    /// SIGSTOP, and it has stopped on return: it takes not one step more.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        await_true("the process has stopped", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            let mut states = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
            states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
        });
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_some()
    }

    #[track_caller]
    pub(crate) fn await_end(&mut self) -> ExitStatus {
        let name = self.settings.name.clone();
        await_some(&format!("{name} has ended"), || {
            self.has_ended();
            self.ended
        })
    }

    /// The same again, on what it left behind.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let child = self.settings.start();
        *self = child;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("--- the log of {}, its end:\n{}", self.settings.name, last.join("\n"));
        } else {
            let log = self.log();
            assert!(!log.contains("panicked at"), "{} panicked:\n{log}", self.settings.name);
            let differs = log.contains("the state is not what the primary ha");
            assert!(!differs || self.settings.may_differ, "{} differs from its primary:\n{log}", self.settings.name);
        }
    }
}
