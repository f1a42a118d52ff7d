//! A summary as text: what is not as it should be first, then the cluster and under it its replicas. Pure.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::summary::{Condition, Failover, Replica, Summary, columns};

/// How a summary is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// From which ages count.
    pub(crate) now: OffsetDateTime,
    pub(crate) colour: bool,
    /// All of them, not only the last.
    pub(crate) failovers: bool,
}

#[cfg(test)]
impl View {
    pub(crate) fn plain() -> Self {
        Self { now: OffsetDateTime::UNIX_EPOCH, colour: false, failovers: false }
    }
}

#[derive(Clone, Copy)]
enum Paint {
    Plain,
    Bold,
    Good,
    Doubtful,
    Bad,
}

impl View {
    fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => return text.to_owned(),
            Paint::Bold => "1",
            Paint::Good => "32",
            Paint::Doubtful => "33",
            Paint::Bad => "31",
        };
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// `3 min`; nothing if it is no time.
    fn age(&self, moment: Option<&String>) -> Option<String> {
        let moment = OffsetDateTime::parse(moment?, &Rfc3339).ok()?;
        let seconds = (self.now - moment).whole_seconds().max(0);
        Some(match seconds {
            0..120 => format!("{seconds} s"),
            120..7_200 => format!("{} min", seconds / 60),
            7_200..172_800 => format!("{} h", seconds / 3_600),
            _ => format!("{} d", seconds / 86_400),
        })
    }
}

impl Summary {
    pub(crate) fn to_text(&self, view: &View) -> String {
        let mut text = self.complaints(view);
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&self.heading(view));
        text.push_str(&self.branches(view));
        let good: Vec<&str> = self.conditions.iter().filter(|c| self.is_good(c)).map(|c| c.kind.as_str()).collect();
        let mut more = String::new();
        if !good.is_empty() {
            more.push_str(&format!("As they should be: {}\n", good.join(", ")));
        }
        if view.failovers {
            more.push_str(&self.failover_table());
        } else if let Some(last) = &self.last_failover {
            more.push_str(&format!("Last change of primary: {}\n", last.to_text(view)));
        }
        if !more.is_empty() {
            text.push_str(&format!("\n{more}"));
        }
        text
    }

    /// What is not as it should be, and what a person has ordered.
    fn complaints(&self, view: &View) -> String {
        let mut text = String::new();
        let mut say = |paint: Paint, what: &str, more: &str| {
            text.push_str(&format!("{}{more}\n", view.paint(paint, what)));
        };
        let bad: Vec<&Condition> = self.conditions.iter().filter(|condition| !self.is_good(condition)).collect();
        let mut told: Vec<(&str, &str)> = Vec::new();
        for condition in &bad {
            let about = (condition.reason.as_str(), condition.message.as_str());
            if told.contains(&about) {
                continue; // with the first that has this reason
            }
            told.push(about);
            let alike: Vec<String> = bad
                .iter()
                .filter(|other| (other.reason.as_str(), other.message.as_str()) == about)
                .map(|other| format!("{} {}", other.kind, other.status))
                .collect();
            let age = view.age(condition.since.as_ref()).map(|age| format!(", for {age}")).unwrap_or_default();
            let message = if condition.message.is_empty() { String::new() } else { format!(": {}", condition.message) };
            let paint = if condition.status == "Unknown" { Paint::Doubtful } else { Paint::Bad };
            say(paint, &format!("! {}", alike.join(", ")), &format!(" ({}{age}){message}", condition.reason));
        }
        if let Some(reason) = &self.confirms_held {
            say(Paint::Bad, "! Confirms are held", &format!(": {reason}"));
        }
        if let Some(reason) = &self.publishers_blocked {
            say(Paint::Bad, "! Publishers are blocked", &format!(": {reason}"));
        }
        if let Some(note) = &self.note {
            say(Paint::Doubtful, "! Not the newest state", &format!(": {note}"));
        }
        let orders = &self.orders;
        if orders.paused {
            say(Paint::Doubtful, "* Paused", ": the operator changes no object; primaries are elected");
        }
        if orders.hibernated {
            say(Paint::Doubtful, "* Hibernated", ": no pods, all data kept");
        }
        if orders.maintenance {
            say(Paint::Doubtful, "* Maintenance", ": nothing is rolled out, no role goes back to a preferred pod");
        }
        if !orders.fenced.is_empty() {
            let fenced = orders.fenced.join(", ");
            say(Paint::Doubtful, "* Fenced", &format!(": {fenced}; neither primary nor in sync while that stands"));
        }
        text
    }

    /// As the operator has them when all is well, and when what is not is a person's order.
    fn is_good(&self, condition: &Condition) -> bool {
        let wanted = match condition.kind.as_str() {
            "Progressing" | "Reconciling" | "Stalled" => "False",
            _ => "True",
        };
        let as_ordered = self.orders.hibernated && (condition.reason == "Hibernated" || condition.status == "Unknown");
        condition.status == wanted || as_ordered || self.follows_from_hibernation(condition)
    }

    fn follows_from_hibernation(&self, condition: &Condition) -> bool {
        self.orders.hibernated && condition.reason == "NoPrimary"
    }

    fn heading(&self, view: &View) -> String {
        let mut parts = match &self.primary {
            Some(primary) => vec![format!("primary {primary}")],
            None => vec![view.paint(Paint::Bad, "no primary")],
        };
        parts.extend(self.epoch.map(|epoch| format!("epoch {epoch}")));
        parts.extend(self.cluster_version.map(|version| format!("version {version}")));
        let all = self.replicas.len();
        if all > 0 {
            let text = format!("{} of {all} in sync", self.in_sync.len());
            parts.push(view.paint(if self.in_sync.len() < all { Paint::Doubtful } else { Paint::Good }, &text));
        }
        let strangers: Vec<&str> = self
            .in_sync
            .iter()
            .filter(|name| self.replicas.iter().all(|replica| replica.name != **name))
            .map(String::as_str)
            .collect();
        if !strangers.is_empty() {
            parts.push(format!("in sync too: {}", strangers.join(", ")));
        }
        format!("{}  {}\n", view.paint(Paint::Bold, &self.cluster), parts.join(", "))
    }

    fn branches(&self, view: &View) -> String {
        let rows: Vec<_> = self.replicas.iter().map(|replica| replica.cells(&self.orders.fenced)).collect();
        let columns = rows.first().map_or(0, Vec::len);
        let width = |column: usize| rows.iter().map(|row| row[column].1.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (at, (replica, row)) in self.replicas.iter().zip(&rows).enumerate() {
            let is_last = at + 1 == rows.len();
            let (branch, beside) = if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
            // A column that nobody fills takes no room; nothing follows the last cell of a row.
            let last = row.iter().rposition(|(_, cell)| !cell.is_empty()).unwrap_or(0);
            let cells = row.iter().zip(&widths).take(last + 1).filter(|(_, width)| **width > 0);
            let mut cells: Vec<String> = cells
                .map(|((paint, cell), width)| {
                    let padding = " ".repeat(width - cell.chars().count());
                    format!("{}{padding}", view.paint(*paint, cell))
                })
                .collect();
            if let Some(cell) = cells.last_mut() {
                *cell = cell.trim_end().to_owned();
            }
            text.push_str(&format!("{branch}{}\n", cells.join("  ")));
            let indent = format!("{beside}{}", " ".repeat(widths[0] + 2));
            if let Some(catch_up) = replica.catch_up {
                text.push_str(&format!("{indent}{}  {}\n", catch_up.to_bar(), catch_up.to_text()));
            }
            for more in replica.message.iter().chain(&replica.alarms) {
                text.push_str(&format!("{indent}{}\n", view.paint(Paint::Doubtful, more)));
            }
        }
        text
    }

    fn failover_table(&self) -> String {
        if self.failovers.is_empty() {
            return "No change of primary is known\n".into();
        }
        let head = ["EPOCH", "SERVING SINCE", "FROM", "TO", "DETECT", "ELECT", "PROMOTE", "ROUTE", "REASON"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for failover in &self.failovers {
            let ms = |part: Option<u64>| part.map_or_else(|| "-".into(), |ms| format!("{ms} ms"));
            rows.push(vec![
                failover.epoch.map_or_else(|| "-".into(), |epoch| epoch.to_string()),
                failover.moment().cloned().unwrap_or_else(|| "-".into()),
                failover.from.clone().unwrap_or_else(|| "-".into()),
                failover.to.clone(),
                ms(failover.detect_ms),
                ms(failover.elect_ms),
                ms(failover.promote_ms),
                ms(failover.route_ms),
                failover.reason.clone(),
            ]);
        }
        columns(&rows)
    }
}

impl Replica {
    /// Name, role, set, lag, position, address.
    fn cells(&self, fenced: &[String]) -> Vec<(Paint, String)> {
        let role = match self.role.to_ascii_lowercase().as_str() {
            "primary" => Paint::Bold,
            "unreachable" | "absent" | "ended" => Paint::Bad,
            "backup" => Paint::Plain,
            _ => Paint::Doubtful,
        };
        let set = match (self.in_sync, fenced.contains(&self.name)) {
            (true, _) => (Paint::Good, "in sync"),
            (false, true) => (Paint::Doubtful, "fenced"),
            (false, false) => (Paint::Doubtful, "not in sync"),
        };
        let lag = self.lag.map(|lag| format!("lag {lag}")).unwrap_or_default();
        let position = self.position.as_ref().map(|position| format!("at {position}")).unwrap_or_default();
        vec![
            (Paint::Plain, self.name.clone()),
            (role, self.role.clone()),
            (set.0, set.1.to_owned()),
            (Paint::Plain, position),
            (Paint::Plain, lag),
            (Paint::Plain, self.amqp.clone().unwrap_or_default()),
        ]
    }
}

impl Failover {
    fn moment(&self) -> Option<&String> {
        self.serving_at.as_ref().or(self.elected_at.as_ref()).or(self.noticed_at.as_ref())
    }

    fn to_text(&self, view: &View) -> String {
        let from = self.from.as_deref().unwrap_or("nobody");
        let epoch = self.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
        let age = view.age(self.moment()).map(|age| format!(", {age} ago")).unwrap_or_default();
        let parts = [
            ("detect", self.detect_ms),
            ("elect", self.elect_ms),
            ("promote", self.promote_ms),
            ("route", self.route_ms),
        ];
        let parts: Vec<String> = parts.into_iter().filter_map(|(part, ms)| Some(format!("{part} {}", ms?))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" ({} ms)", parts.join(", ")) };
        format!("from {from} to {}{epoch}{age}: {}{parts}", self.to, self.reason)
    }
}

#[cfg(test)]
mod tests;
