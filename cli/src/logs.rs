//! `understudy logs`: what the brokers of a cluster write, of those that have a role now; while it follows, of those that have it
//! then. Lines go through as they are, each whole; no more than [`MAX_LINE_BYTES`] of one is kept together.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::io::{AsyncBufReadExt, AsyncReadExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, LogParams};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::arguments::{LogsOptions, RoleChoice};
use crate::kubernetes::{Kubernetes, Seen};

const CONTAINER: &str = "broker";
/// Brokers' lines have a few hundred bytes; what is longer comes in several.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Lines that wait to be printed; who cannot print fast enough slows the reading down.
const MAX_WAITING_LINES: usize = 1_000;
/// How often it is looked who has the role, and for a log that has ended whether there is a new one.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Looks for which a pod without the role is still read: what it says of losing it comes after.
const LOOKS_TO_THE_END: u32 = 4;
/// Of each of several pods, unless it is said otherwise.
const TAIL_OF_SEVERAL: i64 = 10;

struct Plan {
    role: RoleChoice,
    tail: Option<i64>,
    timestamps: bool,
    previous: bool,
}

struct Line {
    pod: String,
    /// Of the node, if it told one.
    at: Option<Timestamp>,
    /// With the time before it, if that is wanted; without a line break.
    text: String,
}

pub(crate) async fn run(options: LogsOptions) -> anyhow::Result<ExitCode> {
    let kubernetes = Kubernetes::reach(&options.reach).await?;
    let LogsOptions { name, follow: follows, role, tail, timestamps, previous, .. } = options;
    let tail = tail.or((follows && role != RoleChoice::Primary).then_some(TAIL_OF_SEVERAL));
    let plan = Plan { role, tail, timestamps, previous };
    let mut out = std::io::stdout();
    if follows {
        follow(&kubernetes, name.as_deref(), &plan, &mut out).await?;
    } else {
        show(&kubernetes, name.as_deref(), &plan, &mut out).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What there is, pod after pod.
async fn show(kubernetes: &Kubernetes, name: Option<&str>, plan: &Plan, out: &mut impl Write) -> anyhow::Result<()> {
    let seen = kubernetes.cluster(name).await?;
    let pods = having(&seen, plan.role);
    if pods.is_empty() {
        bail!("{} has no {} now: {}", seen.name(), plan.role.describe(), seen.condition_text("Available"));
    }
    let api: Api<Pod> = kubernetes.api();
    for pod in pods {
        let (sender, mut lines) = mpsc::channel(MAX_WAITING_LINES);
        let parameters = plan.parameters(false);
        let reading = async {
            let sender = sender; // printing ends with it
            read(&api, &pod, &parameters, plan.timestamps, &sender).await
        };
        let printing = async {
            while let Some(line) = lines.recv().await {
                if print(out, plan.role, &line).is_err() {
                    return false;
                }
            }
            true
        };
        let (outcome, is_read) = futures::join!(reading, printing);
        if !is_read {
            return Ok(()); // who read it has gone
        }
        outcome.with_context(|| format!("the log of {pod} cannot be read"))?;
    }
    Ok(())
}

/// A pod that is read.
struct Reader {
    task: JoinHandle<()>,
    /// How often in a row it was seen without the role.
    without_role: u32,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until nobody reads any more.
async fn follow(kubernetes: &Kubernetes, name: Option<&str>, plan: &Plan, out: &mut impl Write) -> anyhow::Result<()> {
    let mut seen = kubernetes.cluster(name).await?;
    let name = seen.name().to_owned();
    let (sender, mut lines) = mpsc::channel::<Line>(MAX_WAITING_LINES);
    let mut readers: BTreeMap<String, Reader> = BTreeMap::new();
    let mut newest: Option<Timestamp> = None;
    let mut told = String::new();
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(line) = lines.recv() => {
                newest = newest.max(line.at);
                if print(out, plan.role, &line).is_err() {
                    return Ok(()); // who read it has gone
                }
            }
            _ = looks.tick() => {
                // While the API server is away the pods that were seen last are read on.
                if let Ok(now) = kubernetes.cluster(Some(&name)).await {
                    seen = now;
                }
                let pods = having(&seen, plan.role);
                let who = if pods.is_empty() { "nobody".to_owned() } else { pods.join(", ") };
                if who != told {
                    eprintln!("-- {}: {who} --", plan.role.describe());
                    told = who;
                }
                for (pod, reader) in &mut readers {
                    reader.without_role = if pods.contains(pod) { 0 } else { reader.without_role + 1 };
                }
                readers.retain(|_, reader| reader.without_role <= LOOKS_TO_THE_END);
                for pod in pods {
                    readers.entry(pod).or_insert_with_key(|pod| {
                        let mut parameters = plan.parameters(true);
                        if newest.is_some() {
                            // It goes on where its predecessor stopped.
                            (parameters.since_time, parameters.tail_lines) = (newest, None);
                        }
                        let reading = read_on(kubernetes.api(), pod.clone(), parameters, plan.timestamps, sender.clone());
                        Reader { task: tokio::spawn(reading), without_role: 0 }
                    });
                }
            }
        }
    }
}

/// One log after another, since containers end and begin anew, without a line twice.
async fn read_on(api: Api<Pod>, pod: String, mut parameters: LogParams, timestamps: bool, lines: mpsc::Sender<Line>) {
    loop {
        // A container that is not there yet, or a node that is away: it is tried again.
        if let Ok(Some(last)) = read(&api, &pod, &parameters, timestamps, &lines).await {
            parameters.since_time = Some(last);
            parameters.tail_lines = None;
        }
        if lines.is_closed() {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// To its end. Lines no newer than `since_time` are left out; when the last one was written.
async fn read(
    api: &Api<Pod>,
    pod: &str,
    parameters: &LogParams,
    timestamps: bool,
    lines: &mpsc::Sender<Line>,
) -> anyhow::Result<Option<Timestamp>> {
    let stream = api.log_stream(pod, parameters).await?;
    let mut stream = std::pin::pin!(stream);
    let mut last = parameters.since_time;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = stream.as_mut().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes).await;
        match read {
            Ok(0) => return Ok(last),
            Ok(_) => {}
            // A log that was being followed breaks off with its node or its API server: what was read stays read.
            Err(_) if parameters.follow => return Ok(last),
            Err(error) => return Err(error.into()),
        }
        let whole = String::from_utf8_lossy(&bytes);
        let whole = whole.trim_end_matches('\n');
        let (at, rest) = match whole.split_once(' ') {
            Some((time, rest)) => (time.parse::<Timestamp>().ok(), rest),
            None => (None, whole),
        };
        if at.is_some() && at <= parameters.since_time {
            continue;
        }
        last = last.max(at);
        let text = if at.is_some() && !timestamps { rest } else { whole };
        let line = Line { pod: pod.to_owned(), at, text: text.to_owned() };
        if lines.send(line).await.is_err() {
            return Ok(last); // nobody prints any more
        }
    }
}

fn print(out: &mut impl Write, role: RoleChoice, line: &Line) -> std::io::Result<()> {
    match role {
        RoleChoice::Primary => writeln!(out, "{}", line.text),
        RoleChoice::Backup | RoleChoice::All => writeln!(out, "[{}] {}", line.pod, line.text),
    }
}

fn having(seen: &Seen, role: RoleChoice) -> Vec<String> {
    let primary = seen.primary();
    match role {
        RoleChoice::Primary => primary.map(str::to_owned).into_iter().collect(),
        RoleChoice::Backup => seen.pod_names().into_iter().filter(|pod| Some(pod.as_str()) != primary).collect(),
        RoleChoice::All => seen.pod_names().into_iter().collect(),
    }
}

impl Plan {
    /// Times are always asked for: by them no line is shown twice.
    fn parameters(&self, follow: bool) -> LogParams {
        LogParams {
            container: Some(CONTAINER.into()),
            follow,
            previous: self.previous,
            tail_lines: self.tail,
            timestamps: true,
            ..LogParams::default()
        }
    }
}

impl RoleChoice {
    fn describe(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backups",
            Self::All => "pods",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{FakeApi, cluster_path};

    fn log(pod: &str) -> String {
        format!("/api/v1/namespaces/shop/pods/{pod}/log")
    }

    fn api() -> FakeApi {
        let api = FakeApi::with_cluster("orders");
        for n in 0..3 {
            let text = format!("2026-01-02T03:04:0{n}.5Z one of {n}\n2026-01-02T03:04:0{n}.75Z two of {n}\n");
            api.put_text(&log(&format!("orders-{n}")), &text);
        }
        api
    }

    fn plan(role: RoleChoice, timestamps: bool) -> Plan {
        Plan { role, tail: None, timestamps, previous: false }
    }

    async fn shown(api: &FakeApi, plan: Plan) -> String {
        let mut out = Vec::new();
        match show(&api.kubernetes(), None, &plan, &mut out).await {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(error) => format!("error: {error:#}"),
        }
    }

    #[tokio::test]
    async fn of_those_that_have_the_role() {
        let api = api();
        assert_eq!(shown(&api, plan(RoleChoice::Primary, false)).await, "one of 0\ntwo of 0\n");
        let backups = shown(&api, plan(RoleChoice::Backup, false)).await;
        assert_eq!(backups, "[orders-1] one of 1\n[orders-1] two of 1\n[orders-2] one of 2\n[orders-2] two of 2\n");
        let all = shown(&api, plan(RoleChoice::All, true)).await;
        assert!(all.starts_with("[orders-0] 2026-01-02T03:04:00.5Z one of 0\n") && all.lines().count() == 6, "{all}");
        assert_eq!(api.first_not_granted(), None);
        api.take_requests();
        shown(&api, Plan { tail: Some(7), previous: true, ..plan(RoleChoice::Primary, false) }).await;
        let asked = api.take_requests().pop().unwrap();
        assert!(asked.contains("tailLines=7") && asked.contains("previous=true") && asked.contains("container=broker"));
        api.change(&cluster_path("orders"), |cluster| cluster["status"]["primary"] = serde_json::Value::Null);
        let error = shown(&api, plan(RoleChoice::Primary, false)).await;
        assert!(error.contains("orders has no primary now: Available is True"), "{error}");
    }

    /// Takes so many lines; then it is as if it had gone.
    struct Reads {
        api: FakeApi,
        lines: Vec<String>,
        wanted: usize,
    }

    impl Write for Reads {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            if !text.trim().is_empty() {
                self.lines.push(text);
            }
            if self.lines.len() == 2 {
                self.api.change(&cluster_path("orders"), |cluster| cluster["status"]["primary"] = "orders-1".into());
            }
            if self.lines.len() >= self.wanted { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Each log of the fake ends at once and is read again, as if its container had ended: no line comes twice.
    #[tokio::test(start_paused = true)]
    async fn it_follows_the_role() {
        let api = api();
        let mut reads = Reads { api: api.clone(), lines: Vec::new(), wanted: 4 };
        let (kubernetes, plan) = (api.kubernetes(), plan(RoleChoice::Primary, false));
        let following = follow(&kubernetes, None, &plan, &mut reads);
        tokio::time::timeout(Duration::from_secs(600), following).await.unwrap().unwrap();
        assert_eq!(reads.lines, ["one of 0", "two of 0", "one of 1", "two of 1"]);
    }
}
