//! `understudy status --watch`: the same look again and again. On a terminal the picture is drawn anew in place;
//! elsewhere each change is a line.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::summary::{CatchUp, Summary};
use super::tree::View;

/// Between two looks: people follow no faster, and a catch-up that takes less is over.
const INTERVAL: Duration = Duration::from_millis(500);
const BAR_CELLS: usize = 20;

/// Until the process is stopped, or nobody reads any more. A look that fails is shown, and tried again.
pub(super) async fn watch(
    mut look: impl AsyncFnMut() -> anyhow::Result<Summary>,
    view: impl Fn() -> View,
) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut shown = String::new();
    loop {
        let text = match look().await {
            Ok(summary) if is_terminal => summary.to_text(&view()),
            Ok(summary) => summary.to_line(),
            Err(error) => format!("{error:#}\n"),
        };
        if text != shown {
            let mut out = std::io::stdout().lock();
            let drawn = if is_terminal { write!(out, "{}{text}", erase(&shown)) } else { write!(out, "{text}") };
            if drawn.and_then(|()| out.flush()).is_err() {
                return Ok(()); // who read it has gone
            }
            shown = text;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The cursor to where that text began, and nothing after it.
fn erase(shown: &str) -> String {
    match shown.lines().count() {
        0 => String::new(),
        lines => format!("\x1b[{lines}A\x1b[J"),
    }
}

impl Summary {
    /// What changes, in one line.
    fn to_line(&self) -> String {
        let primary = self.primary.as_deref().unwrap_or("none");
        let epoch = self.epoch.map_or_else(String::new, |epoch| format!(", epoch {epoch}"));
        let mut parts = vec![format!("primary {primary}{epoch}"), format!("in sync {}", self.in_sync.join(" "))];
        parts.extend(self.confirms_held.as_ref().map(|reason| format!("confirms held: {reason}")));
        parts.extend(self.publishers_blocked.as_ref().map(|reason| format!("publishers blocked: {reason}")));
        for replica in self.replicas.iter().filter(|replica| !replica.in_sync || replica.catch_up.is_some()) {
            let progress = replica.catch_up.map(|catch_up| format!(" {} {}", catch_up.percent(), catch_up.to_text()));
            let message = replica.message.as_ref().map(|message| format!(" ({message})"));
            let (progress, message) = (progress.unwrap_or_default(), message.unwrap_or_default());
            parts.push(format!("{} {}{progress}{message}", replica.name, replica.role));
        }
        let waiting = self.conditions.iter().filter(|c| c.status == "False");
        parts.extend(waiting.map(|c| format!("{} {}: {}", c.kind, c.reason, c.message)));
        format!("{}\n", parts.join("; "))
    }
}

impl CatchUp {
    /// `[######..............] 30 %`
    pub(super) fn to_bar(self) -> String {
        let done = (self.share() * BAR_CELLS as f64) as usize;
        let bar = format!("{}{}", "#".repeat(done), ".".repeat(BAR_CELLS - done.min(BAR_CELLS)));
        format!("[{bar}] {}", self.percent())
    }

    /// 0 to 1, by what there is most to tell of.
    fn share(self) -> f64 {
        let pairs =
            [(self.bytes_done, self.bytes), (self.messages_done, self.messages), (self.queues_done, self.queues)];
        // Nothing to fetch is all fetched.
        let (done, all) = pairs.into_iter().find(|(_, all)| *all > 0).unwrap_or((1, 1));
        (done as f64 / all as f64).min(1.0)
    }

    fn percent(self) -> String {
        format!("{:.0} %", (self.share() * 100.0).floor())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::summary::Replica;
    use super::*;

    fn summary() -> Summary {
        let catch_up = CatchUp {
            queues_done: 3,
            queues: 10,
            messages_done: 120,
            messages: 400,
            bytes_done: 12 << 20,
            bytes: 40 << 20,
            bytes_per_second: 5 << 20,
            remaining_seconds: Some(6),
        };
        let replica = |name: &str, role: &str, in_sync| Replica {
            name: name.into(),
            role: role.into(),
            in_sync,
            ..Replica::default()
        };
        Summary {
            cluster: "dev".into(),
            primary: Some("dev-0".into()),
            epoch: Some(7),
            in_sync: vec!["dev-0".into(), "dev-1".into()],
            replicas: vec![
                replica("dev-0", "primary", true),
                replica("dev-1", "backup", true),
                Replica { catch_up: Some(catch_up), ..replica("dev-2", "catching-up", false) },
                replica("dev-10", "unreachable", false),
            ],
            ..Summary::default()
        }
    }

    #[test]
    fn a_line_for_each_change() {
        expect![[r#"
            primary dev-0, epoch 7; in sync dev-0 dev-1; dev-2 catching-up 30 % 3/10 queues, 120/400 messages, 12.0 MiB of 40.0 MiB, 5.0 MiB/s, 6 s left; dev-10 unreachable
        "#]]
        .assert_eq(&summary().to_line());
    }

    #[test]
    fn a_share_is_never_more_than_all_and_nothing_to_do_is_done() {
        assert!((CatchUp::default().share() - 1.0).abs() < f64::EPSILON);
        let more = CatchUp { bytes_done: 9, bytes: 8, ..CatchUp::default() };
        assert_eq!(more.percent(), "100 %");
        assert_eq!(CatchUp { messages_done: 1, messages: 4, ..CatchUp::default() }.percent(), "25 %");
    }

    #[test]
    fn what_was_drawn_is_erased_line_by_line() {
        assert_eq!(erase(""), "");
        assert_eq!(erase("a\nb\n"), "\x1b[2A\x1b[J");
    }
}
