//! A cluster as it is shown, wherever it runs: plain data. The JSON form is the data itself; its text is made in `tree`.

use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) cluster: String,
    pub(crate) primary: Option<String>,
    pub(crate) epoch: Option<u64>,
    /// What may be written in the cluster; `None` if nobody says so.
    pub(crate) cluster_version: Option<u32>,
    pub(crate) in_sync: Vec<String>,
    /// Why confirms are held, if they are.
    pub(crate) confirms_held: Option<String>,
    /// Why publishers are blocked, if they are.
    pub(crate) publishers_blocked: Option<String>,
    /// Why all this may not be the newest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    pub(crate) orders: Orders,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) last_failover: Option<Failover>,
    /// The last ten, the newest first.
    pub(crate) failovers: Vec<Failover>,
}

/// What annotations order. Local clusters know none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Orders {
    pub(crate) paused: bool,
    pub(crate) hibernated: bool,
    pub(crate) maintenance: bool,
    pub(crate) fenced: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) in_sync: bool,
    /// `epoch:index` of its last record.
    pub(crate) position: Option<String>,
    /// Records of the primary's log that it has not made durable.
    pub(crate) lag: Option<u64>,
    pub(crate) catch_up: Option<CatchUp>,
    /// Local clusters only.
    pub(crate) amqp: Option<String>,
    pub(crate) message: Option<String>,
    /// What it is low on, a sentence each. Local clusters only: an operator's status has it in the message.
    pub(crate) alarms: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CatchUp {
    pub(crate) queues_done: u64,
    pub(crate) queues: u64,
    pub(crate) messages_done: u64,
    pub(crate) messages: u64,
    pub(crate) bytes_done: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_per_second: u64,
    /// At that rate.
    pub(crate) remaining_seconds: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// RFC 3339, as it was read.
    pub(crate) since: Option<String>,
}

/// A change of primary. Times of parts are absent where nobody saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failover {
    pub(crate) from: Option<String>,
    pub(crate) to: String,
    pub(crate) epoch: Option<u64>,
    pub(crate) reason: String,
    pub(crate) noticed_at: Option<String>,
    pub(crate) elected_at: Option<String>,
    pub(crate) serving_at: Option<String>,
    pub(crate) detect_ms: Option<u64>,
    pub(crate) elect_ms: Option<u64>,
    pub(crate) promote_ms: Option<u64>,
    pub(crate) route_ms: Option<u64>,
}

impl CatchUp {
    pub(crate) fn to_text(self) -> String {
        let Self { queues_done, queues, messages_done, messages, bytes_done, bytes, .. } = self;
        let mut text = format!("{queues_done}/{queues} queues");
        if messages > 0 {
            text.push_str(&format!(", {messages_done}/{messages} messages"));
        }
        text.push_str(&format!(", {} of {}", mebibytes(bytes_done), mebibytes(bytes)));
        if self.bytes_per_second > 0 {
            text.push_str(&format!(", {}/s", mebibytes(self.bytes_per_second)));
        }
        if let Some(seconds) = self.remaining_seconds {
            text.push_str(&format!(", {seconds} s left"));
        }
        text
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Rows under one another, each column as wide as its widest cell, nothing after the last.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
