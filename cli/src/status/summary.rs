//! A cluster as it is shown, wherever it runs: plain data, and its text. The JSON form is the data itself.

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
    pub(crate) replicas: Vec<Replica>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) last_failover: Option<LastFailover>,
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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastFailover {
    pub(crate) from: Option<String>,
    pub(crate) to: String,
    pub(crate) reason: String,
    pub(crate) noticed_at: Option<String>,
    pub(crate) elected_at: Option<String>,
    pub(crate) serving_at: Option<String>,
}

impl Summary {
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("Cluster   {}\n", self.cluster);
        let primary = self.primary.as_deref().unwrap_or("none");
        let epoch = self.epoch.map_or_else(String::new, |epoch| format!(", epoch {epoch}"));
        text.push_str(&format!("Primary   {primary}{epoch}\n"));
        let in_sync = if self.in_sync.is_empty() { "none".to_string() } else { self.in_sync.join(", ") };
        text.push_str(&format!("In sync   {} of {}: {in_sync}\n", self.in_sync.len(), self.replicas.len()));
        if let Some(version) = self.cluster_version {
            text.push_str(&format!("Version   {version}\n"));
        }
        if let Some(reason) = &self.confirms_held {
            text.push_str(&format!("Confirms  held: {reason}\n"));
        }
        if let Some(reason) = &self.publishers_blocked {
            text.push_str(&format!("Publish   blocked: {reason}\n"));
        }
        if let Some(failover) = &self.last_failover {
            text.push_str(&format!("Failover  {}\n", failover.to_text()));
        }
        if !self.replicas.is_empty() {
            text.push('\n');
            text.push_str(&self.replica_table());
        }
        if !self.conditions.is_empty() {
            text.push('\n');
            text.push_str(&self.condition_table());
        }
        text
    }

    fn replica_table(&self) -> String {
        let with_amqp = self.replicas.iter().any(|replica| replica.amqp.is_some());
        let mut rows = vec![
            vec!["REPLICA", "ROLE", "IN-SYNC", "POSITION", "LAG", "CATCH-UP"].into_iter().map(str::to_string).collect(),
        ];
        if with_amqp {
            Vec::push(&mut rows[0], "AMQP".into());
        }
        for replica in &self.replicas {
            let mut row = vec![
                replica.name.clone(),
                replica.role.clone(),
                if replica.in_sync { "yes" } else { "no" }.into(),
                or_dash(replica.position.clone()),
                or_dash(replica.lag.map(|lag| lag.to_string())),
                or_dash(replica.catch_up.map(|catch_up| catch_up.to_text())),
            ];
            if with_amqp {
                row.push(or_dash(replica.amqp.clone()));
            }
            rows.push(row);
        }
        let mut text = columns(&rows);
        for replica in &self.replicas {
            if let Some(message) = &replica.message {
                text.push_str(&format!("{}: {message}\n", replica.name));
            }
            for alarm in &replica.alarms {
                text.push_str(&format!("{alarm}\n"));
            }
        }
        text
    }

    fn condition_table(&self) -> String {
        let mut rows = vec![["CONDITION", "STATUS", "REASON", "MESSAGE"].map(str::to_string).to_vec()];
        for Condition { kind, status, reason, message } in &self.conditions {
            rows.push(vec![kind.clone(), status.clone(), reason.clone(), message.clone()]);
        }
        columns(&rows)
    }
}

impl LastFailover {
    fn to_text(&self) -> String {
        let from = self.from.as_deref().unwrap_or("none");
        let mut text = format!("from {from} to {}: {}", self.to, self.reason);
        for (what, when) in
            [("noticed", &self.noticed_at), ("elected", &self.elected_at), ("serving", &self.serving_at)]
        {
            if let Some(when) = when {
                text.push_str(&format!("\n          {what} {when}"));
            }
        }
        text
    }
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

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
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

#[cfg(test)]
pub(crate) mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_cluster_in_the_middle_of_a_catch_up() {
        let replica = |name: &str, role: &str, in_sync, lag| Replica {
            name: name.into(),
            role: role.into(),
            in_sync,
            position: Some("7:120400".into()),
            lag: Some(lag),
            amqp: Some("127.0.0.1:5672".into()),
            ..Default::default()
        };
        let catching_up = Replica {
            catch_up: Some(CatchUp {
                queues_done: 3,
                queues: 10,
                bytes_done: 12 << 20,
                bytes: 40 << 20,
                ..CatchUp::default()
            }),
            message: Some("reads from segments".into()),
            ..replica("dev-2", "catching-up", false, 90_000)
        };
        let summary = Summary {
            cluster: "dev".into(),
            primary: Some("dev-1".into()),
            epoch: Some(7),
            in_sync: vec!["dev-0".into(), "dev-1".into()],
            replicas: vec![
                replica("dev-0", "backup", true, 2),
                Replica { lag: None, ..replica("dev-1", "primary", true, 0) },
                catching_up,
                Replica { name: "dev-3".into(), role: "unreachable".into(), ..Default::default() },
            ],
            ..Default::default()
        };
        expect![[r#"
            Cluster   dev
            Primary   dev-1, epoch 7
            In sync   2 of 4: dev-0, dev-1

            REPLICA  ROLE         IN-SYNC  POSITION  LAG    CATCH-UP                           AMQP
            dev-0    backup       yes      7:120400  2      -                                  127.0.0.1:5672
            dev-1    primary      yes      7:120400  -      -                                  127.0.0.1:5672
            dev-2    catching-up  no       7:120400  90000  3/10 queues, 12.0 MiB of 40.0 MiB  127.0.0.1:5672
            dev-3    unreachable  no       -         -      -                                  -
            dev-2: reads from segments
        "#]]
        .assert_eq(&summary.to_text());
    }

    #[test]
    fn a_cluster_that_nobody_leads() {
        let summary = Summary {
            cluster: "shop/orders".into(),
            confirms_held: Some("1 of 2 in sync".into()),
            ..Default::default()
        };
        expect![[r#"
            Cluster   shop/orders
            Primary   none
            In sync   0 of 0: none
            Confirms  held: 1 of 2 in sync
        "#]]
        .assert_eq(&summary.to_text());
    }
}
