//! Keeps one broker process running a name: starts it, notices its end, starts it again, and stops it in the end. Who is
//! primary is nothing to it; what it notices goes to the elector at once.
//! When this process dies without a word the brokers notice by themselves (`--exit-with-parent`).

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use understudy_record::ReplicaName;

use super::elector::Heard;
use super::events::{Event, Events};
use crate::cluster_file::ClusterFile;

/// A broker that lives shorter has not got to work; it waits before its next try.
const SHORT_LIFE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Long enough not to burn a processor, short enough that a cured cause (a full disk) is soon noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// From this many short lives in a row on, people are shown the end of the log.
const SHORT_LIVES_SHOWN: u32 = 3;
/// A broker that was asked to stop hands over and leaves; after this it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// So much of a log's end is shown.
const SHOWN_LOG_BYTES: u64 = 1500;
/// A longer line of a broker's output is shown in pieces.
const MAX_LINE_BYTES: u64 = 8192;
/// Signals that wait for one broker's task to send them. The demonstration gives one at a time.
const MAX_WAITING_SIGNALS: usize = 4;

/// How to run one broker.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) name: ReplicaName,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) log: PathBuf,
    /// Its output also goes to our standard error.
    pub(crate) verbose: bool,
}

pub(crate) struct Supervisor {
    tasks: JoinSet<()>,
    signals: Vec<(ReplicaName, mpsc::Sender<Order>)>,
    stop: watch::Sender<Stop>,
}

/// A signal to be sent to the process that runs now, and who is told when it was; nobody, if no process runs.
struct Order {
    signal: Signal,
    sent: oneshot::Sender<Instant>,
}

/// Which brokers are asked to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    None,
    AllBut(ReplicaName),
    All,
}

impl Stop {
    fn concerns(&self, name: &ReplicaName) -> bool {
        match self {
            Self::None => false,
            Self::AllBut(spared) => spared != name,
            Self::All => true,
        }
    }
}

/// What each broker's task tells others.
#[derive(Clone)]
pub(crate) struct Listeners {
    pub(crate) elector: mpsc::Sender<Heard>,
    pub(crate) events: Events,
    pub(crate) roster: Arc<Roster>,
}

/// The directory's cluster file, kept up to date with the processes.
pub(crate) struct Roster {
    dir: PathBuf,
    file: Mutex<ClusterFile>,
}

impl Roster {
    pub(crate) fn new(dir: &Path, file: ClusterFile) -> Self {
        Self { dir: dir.into(), file: Mutex::new(file) }
    }

    /// A failure is told and no more: the file is a convenience.
    fn note_process(&self, name: &ReplicaName, pid: Option<u32>) {
        let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for broker in file.brokers.iter_mut().filter(|broker| broker.name == name.as_str()) {
            broker.pid = pid;
        }
        if let Err(error) = file.write(&self.dir) {
            tracing::warn!(%error, "the cluster file is out of date");
        }
    }
}

impl Supervisor {
    pub(crate) fn start(launches: Vec<Launch>, listeners: &Listeners) -> Self {
        let (stop, stopped) = watch::channel(Stop::None);
        let mut tasks = JoinSet::new();
        let mut signals = Vec::new();
        for launch in launches {
            let (signal, orders) = mpsc::channel(MAX_WAITING_SIGNALS);
            signals.push((launch.name.clone(), signal));
            let keeper =
                Keeper { launch, listeners: listeners.clone(), orders, stopped: stopped.clone(), short_lives: 0 };
            tasks.spawn(keeper.run());
        }
        Self { tasks, signals, stop }
    }

    /// Sends a signal to the process of this name; one that ends by it is started again like any that dies. Returns the time
    /// right before the signal; `None` if no process runs under this name now.
    pub(crate) async fn signal(&self, name: &str, signal: Signal) -> Option<Instant> {
        let (_, orders) = self.signals.iter().find(|(known, _)| known.as_str() == name)?;
        let (sent, at) = oneshot::channel();
        orders.send(Order { signal, sent }).await.ok()?;
        at.await.ok()
    }

    /// Asks every broker to stop, `last` only when the others have ended; kills what has not after a while; returns when all
    /// have ended. With the primary for the last, each backup leaves in good order and the primary has nobody to wait for.
    pub(crate) async fn stop(mut self, last: Option<ReplicaName>) {
        if let Some(last) = last.filter(|last| self.signals.iter().any(|(name, _)| name == last)) {
            self.stop.send_replace(Stop::AllBut(last));
            while self.tasks.len() > 1 {
                self.tasks.join_next().await;
            }
        }
        self.stop.send_replace(Stop::All);
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Keeper {
    launch: Launch,
    listeners: Listeners,
    orders: mpsc::Receiver<Order>,
    stopped: watch::Receiver<Stop>,
    short_lives: u32,
}

enum End {
    Died,
    Stopped,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let began = Instant::now();
            match self.spawn() {
                Ok(child) => match self.keep(child).await {
                    End::Stopped => return,
                    End::Died => {}
                },
                Err(error) => {
                    let program = self.launch.program.display();
                    self.note(format!("{} cannot be started: {program}: {error}", self.launch.name));
                }
            }
            self.short_lives = if began.elapsed() < SHORT_LIFE { self.short_lives + 1 } else { 0 };
            if self.short_lives == SHORT_LIVES_SHOWN {
                self.show_log();
            }
            if let End::Stopped = self.rest(pause(self.short_lives)).await {
                return;
            }
        }
    }

    /// Between two processes: there is none to be sent a signal.
    async fn rest(&mut self, pause: Duration) -> End {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return End::Died,
                Some(order) = self.orders.recv() => drop(order),
                () = asked_to_stop(&mut self.stopped, &self.launch.name) => return End::Stopped,
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.launch.program);
        command.args(&self.launch.arguments).stdin(Stdio::null()).kill_on_drop(true);
        // Its own process group: Ctrl-C at the terminal reaches the supervisor alone, which then stops brokers in order.
        command.process_group(0);
        let log = || OpenOptions::new().create(true).append(true).open(&self.launch.log);
        if self.launch.verbose {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        } else {
            command.stdout(log()?).stderr(log()?);
        }
        let mut child = command.spawn()?;
        if let Some(output) = child.stdout.take() {
            tokio::spawn(show(self.launch.name.clone(), output, log()?));
        }
        if let Some(output) = child.stderr.take() {
            tokio::spawn(show(self.launch.name.clone(), output, log()?));
        }
        Ok(child)
    }

    /// Until the process has ended, by itself or because it was asked to.
    async fn keep(&mut self, mut child: Child) -> End {
        let name = self.launch.name.clone();
        // It has a process id until it has been waited for, which is done below only.
        let Some(pid) = child.id() else { return End::Died };
        self.tell_elector(Heard::Started { name: name.clone(), pid }).await;
        self.listeners.events.tell(Event::Started { name: name.to_string(), pid });
        self.listeners.roster.note_process(&name, Some(pid));
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                Some(order) = self.orders.recv() => {
                    let at = Instant::now();
                    if send(pid, order.signal) {
                        // Whoever asked may have stopped waiting for the answer.
                        let _ = order.sent.send(at);
                    }
                }
                () = asked_to_stop(&mut self.stopped, &self.launch.name) => {
                    stop(&mut child, pid).await;
                    return End::Stopped;
                }
            }
        };
        let noticed = Instant::now();
        self.tell_elector(Heard::Ended { name: name.clone(), noticed }).await;
        let how = status.as_ref().map_or_else(|error| error.to_string(), |status| status.to_string());
        self.listeners.events.tell(Event::Ended { name: name.to_string(), pid, how });
        self.listeners.roster.note_process(&name, None);
        End::Died
    }

    async fn tell_elector(&self, heard: Heard) {
        // It is gone only when the cluster is being stopped.
        let _ = self.listeners.elector.send(heard).await;
    }

    fn note(&self, text: String) {
        self.listeners.events.tell(Event::Note { text });
    }

    fn show_log(&self) {
        let name = &self.launch.name;
        let end = end_of(&self.launch.log).unwrap_or_else(|error| format!("(cannot be read: {error})"));
        let log = self.launch.log.display();
        self.note(format!("{name} keeps ending soon after its start; the end of {log}:\n{end}"));
    }
}

/// How long to wait after so many short lives in a row. One that had got to work is started again at once.
fn pause(short_lives: u32) -> Duration {
    match short_lives {
        0 => Duration::ZERO,
        n => FIRST_PAUSE.saturating_mul(1 << (n - 1).min(10)).min(LONGEST_PAUSE),
    }
}

/// Also when the supervisor is gone.
async fn asked_to_stop(stopped: &mut watch::Receiver<Stop>, name: &ReplicaName) {
    // What comes back is a lock on the value, which must not be held.
    let _ = stopped.wait_for(|stop| stop.concerns(name)).await;
}

async fn stop(child: &mut Child, pid: u32) {
    // A process that is stopped by a signal takes no other but SIGKILL before it is continued.
    let asked = send(pid, Signal::TERM) && send(pid, Signal::CONT);
    if !asked || tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err() {
        // Waits for its end too. It fails only if there is no process any more.
        let _ = child.kill().await;
    }
}

/// To a process that has not been waited for, so that the number is still its own.
fn send(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Copies a broker's output to its log and, with its name before each line, to our standard error.
async fn show(name: ReplicaName, output: impl AsyncRead + Unpin, mut log: std::fs::File) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // A full disk or a closed terminal must not stop the broker at a full pipe.
        let _ = log.write_all(&line);
        let _ = writeln!(io::stderr(), "{name} | {}", String::from_utf8_lossy(line.trim_ascii_end()));
    }
}

fn end_of(log: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(log)?;
    let from = file.metadata()?.len().saturating_sub(SHOWN_LOG_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(SHOWN_LOG_BYTES).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far beyond what any step takes, so that only a step that never comes fails.
    const SOON: Duration = Duration::from_secs(20);

    struct Rig {
        dir: tempfile::TempDir,
        supervisor: Supervisor,
        heard: mpsc::Receiver<Heard>,
        told: mpsc::Receiver<Event>,
    }

    /// One "broker" that runs a shell script.
    fn rig(script: &str) -> Rig {
        rig_of(&["dev-0"], script)
    }

    fn rig_of(names: &[&str], script: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let (elector, heard) = mpsc::channel(100);
        let (events, told) = Events::channel();
        let file = ClusterFile {
            pid: 1,
            cluster: "dev".into(),
            min_in_sync: 1,
            durability: "fsync".into(),
            tls_dir: dir.path().into(),
            lease_dir: dir.path().into(),
            brokers: Vec::new(),
        };
        let launch = |name: &&str| Launch {
            name: ReplicaName::new(name),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), (*name).into()],
            log: dir.path().join(format!("{name}.log")),
            verbose: false,
        };
        let launches = names.iter().map(launch).collect();
        let listeners = Listeners { elector, events, roster: Arc::new(Roster::new(dir.path(), file)) };
        let supervisor = Supervisor::start(launches, &listeners);
        Rig { dir, supervisor, heard, told }
    }

    impl Rig {
        async fn told(&mut self) -> Event {
            tokio::time::timeout(SOON, self.told.recv()).await.expect("an event in time").expect("events go on")
        }

        async fn heard(&mut self) -> Heard {
            tokio::time::timeout(SOON, self.heard.recv()).await.expect("a word in time").expect("words go on")
        }

        /// Until the script has said so in its log.
        async fn await_log(&self, name: &str, text: &str) {
            let log = self.dir.path().join(format!("{name}.log"));
            let said = async {
                while !std::fs::read_to_string(&log).unwrap_or_default().contains(text) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(SOON, said).await.expect("the script says so in time");
        }
    }

    #[tokio::test]
    async fn a_killed_broker_is_noticed_and_started_again() {
        let mut rig = rig("exec sleep 1000");
        let Event::Started { pid: first, .. } = rig.told().await else { panic!("not started") };
        assert!(matches!(rig.heard().await, Heard::Started { .. }));
        assert!(rig.supervisor.signal("dev-0", Signal::KILL).await.is_some());
        assert!(matches!(rig.heard().await, Heard::Ended { .. }));
        let Event::Ended { pid, how, .. } = rig.told().await else { panic!("its end was not told") };
        assert_eq!(pid, first);
        assert!(how.contains("SIGKILL"), "{how}");
        let Event::Started { pid: second, .. } = rig.told().await else { panic!("not started again") };
        assert_ne!(first, second);
        rig.supervisor.stop(None).await;
    }

    #[tokio::test]
    async fn one_that_keeps_dying_is_shown_with_the_end_of_its_log() {
        let mut rig = rig("echo no such directory >&2; exit 3");
        let note = loop {
            if let Event::Note { text } = rig.told().await {
                break text;
            }
        };
        assert!(note.contains("no such directory"), "{note}");
        rig.supervisor.stop(None).await;
    }

    #[tokio::test]
    async fn stopping_asks_first() {
        let rig = rig("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        rig.await_log("dev-0", "ready").await;
        let dir = rig.dir;
        rig.supervisor.stop(None).await;
        assert!(std::fs::read_to_string(dir.path().join("dev-0.log")).unwrap().contains("asked"));
    }

    #[tokio::test]
    async fn one_that_is_stopped_by_a_signal_is_continued_to_be_asked() {
        let rig = rig("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        rig.await_log("dev-0", "ready").await;
        assert!(rig.supervisor.signal("dev-0", Signal::STOP).await.is_some());
        let dir = rig.dir;
        rig.supervisor.stop(None).await;
        assert!(std::fs::read_to_string(dir.path().join("dev-0.log")).unwrap().contains("asked"));
    }

    #[tokio::test]
    async fn the_primary_is_asked_last() {
        let order = "trap 'echo $0 >> order; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
        let home = tempfile::tempdir().unwrap();
        let names = ["dev-0", "dev-1", "dev-2"];
        let rig = rig_of(&names, &format!("cd {}; {order}", home.path().display()));
        for name in names {
            rig.await_log(name, "ready").await;
        }
        rig.supervisor.stop(Some(ReplicaName::new("dev-1"))).await;
        let order = std::fs::read_to_string(home.path().join("order")).unwrap();
        assert_eq!(order.lines().count(), 3, "{order}");
        assert_eq!(order.lines().last(), Some("dev-1"), "{order}");
    }

    #[tokio::test]
    async fn a_name_that_is_none_of_them_is_not_waited_for() {
        let rig = rig("exec sleep 1000");
        rig.supervisor.stop(Some(ReplicaName::new("dev-7"))).await;
    }

    #[test]
    fn pauses_grow_to_a_bound_and_begin_at_none() {
        let pauses: Vec<_> = [0, 1, 2, 3, 6, 7, u32::MAX].map(pause).iter().map(Duration::as_millis).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 3000, 3000, 3000]);
    }
}
