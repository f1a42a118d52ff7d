//! What a ConfigMap says that the cluster is to have, imported once for each of its versions: by the primary, as changes that
//! are confirmed like any others.

use std::sync::Arc;
use std::time::Duration;

use understudy_crds::DefinitionsStatus;
use understudy_definitions::{Plan, Report, plan};
use understudy_proto as wire;
use understudy_record::ReplicaName;

use super::peer::Command;
use super::task::{Task, timestamp};
use crate::status;

/// After an import that came to nothing: the primary changed, or did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Entries of the file that do not say in which virtual host they are.
const DEFAULT_VHOST: &str = "/";
/// Lines of a report that the status keeps.
const MAX_LINES: usize = 20;
const MAX_LINE_CHARS: usize = 200;

/// The text, and what tells this version of it from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenDefinitions {
    pub text: Arc<str>,
    pub hash: String,
}

/// Where the task is with it.
#[derive(Debug, Default)]
pub(super) struct Import {
    /// Under way.
    sent: Option<Sent>,
    retry_at: Duration,
    /// What became of the last one.
    pub(super) done: Option<DefinitionsStatus>,
}

/// What a primary was asked for.
#[derive(Debug)]
struct Sent {
    to: ReplicaName,
    hash: String,
    plan: Plan,
}

impl Import {
    /// Who was asked is perhaps not there any more to answer: the next one is asked for all of it, which changes nothing twice.
    pub(super) fn note_moved(&mut self) {
        self.sent = None;
    }

    pub(super) fn of(status: Option<&DefinitionsStatus>) -> Self {
        Self { done: status.cloned(), ..Self::default() }
    }

    pub(super) fn wakes_at(&self) -> Duration {
        self.retry_at
    }
}

impl Task {
    /// Sends what is not imported yet to a primary that serves.
    pub(super) fn import_definitions(&mut self) {
        let now = self.now();
        let Some(given) = self.assignment.target.definitions.clone() else {
            self.import.done = None;
            return;
        };
        let is_done = self.import.done.as_ref().is_some_and(|done| done.hash == given.hash);
        let waits = self.import.sent.is_some() || now < self.import.retry_at || self.cluster().orders.paused;
        if is_done || waits {
            return;
        }
        let Some(lease) = self.held() else { return };
        let Some(holder) = lease.holder().filter(|_| status::serving(lease, &self.sight, now).is_some()) else {
            return;
        };
        let holder = holder.name.clone();
        match plan(given.text.as_bytes(), DEFAULT_VHOST, false) {
            Ok(plan) => {
                if self.peers.send(&holder, Command::Administer(plan.changes())) {
                    self.import.sent = Some(Sent { to: holder, hash: given.hash, plan });
                }
            }
            Err(error) => {
                let text = format!("it is no file of definitions: {error}");
                self.announcer.warning("DefinitionsRefused", "Import", text.clone());
                self.import.done = Some(DefinitionsStatus {
                    hash: given.hash,
                    at: timestamp(),
                    changed: 0,
                    unchanged: 0,
                    problems: vec![shortened(&text)],
                });
            }
        }
    }

    pub(super) fn handle_administered(&mut self, by: &ReplicaName, result: Result<Vec<wire::AdminOutcome>, String>) {
        let Some(Sent { hash, plan, .. }) = self.import.sent.take_if(|sent| sent.to == *by) else { return };
        match result {
            Ok(outcomes) => {
                let report = plan.report(outcomes);
                let note = report.to_string().trim_end().to_owned();
                match report.is_clean() {
                    true => self.announcer.normal("DefinitionsImported", "Import", note),
                    false => self.announcer.warning("DefinitionsDiffer", "Import", note),
                }
                self.import.done = Some(told(hash, report));
            }
            Err(why) => {
                tracing::warn!(cluster = %self.cluster().name, why, "definitions not imported");
                self.import.retry_at = self.now() + RETRY_AFTER;
            }
        }
    }
}

fn told(hash: String, report: Report) -> DefinitionsStatus {
    let Report { changed, unchanged, differs, refused, not_taken } = report;
    let kinds = [("differs", differs), ("refused", refused), ("not taken", not_taken)];
    let lines = kinds
        .into_iter()
        .flat_map(|(what, lines)| lines.into_iter().map(move |line| shortened(&format!("{what}: {line}"))));
    let mut problems: Vec<String> = lines.collect();
    if problems.len() > MAX_LINES {
        let rest = problems.len() - MAX_LINES;
        problems.truncate(MAX_LINES);
        problems.push(format!("and {rest} more"));
    }
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    DefinitionsStatus { hash, at: timestamp(), changed: number(changed), unchanged: number(unchanged), problems }
}

fn shortened(line: &str) -> String {
    line.chars().take(MAX_LINE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_report_is_cut_and_says_so() {
        let report =
            Report { changed: 2, refused: (0..30).map(|n| format!("queue {n}: no")).collect(), ..Report::default() };
        let status = told("h".into(), report);
        assert_eq!((status.changed, status.problems.len()), (2, 21));
        assert_eq!(
            (status.problems[0].as_str(), status.problems[20].as_str()),
            ("refused: queue 0: no", "and 10 more")
        );
    }
}
