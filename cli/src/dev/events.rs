//! What happens in a local cluster, as told to whoever started it: lines for people, or one JSON object a line for programs.
//! The JSON objects are an interface that others parse; the lines for people are not.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use understudy_record::Epoch;

/// Events that wait for a slow reader of our output. The elector never waits for one: past this bound lines are dropped,
/// and a line says so. A cluster that is killed twenty times a second writes as many in a minute.
pub(crate) const MAX_WAITING_EVENTS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Once: there is a primary and every broker answers.
    Ready {
        brokers: Vec<BrokerLine>,
    },
    Started {
        name: String,
        pid: u32,
    },
    Primary {
        name: String,
        epoch: Epoch,
        reason: String,
        elected: Option<Elected>,
    },
    /// The new primary says that it is one.
    Serving {
        name: String,
        epoch: Epoch,
        after: Duration,
    },
    Ended {
        name: String,
        pid: u32,
        how: String,
    },
    /// Every broker is in the in-sync set. Told at each change, with the primary's epoch.
    InSync {
        names: Vec<String>,
        epoch: Epoch,
    },
    /// Something a person should know.
    Note {
        text: String,
    },
}

/// An election by this process: how long from the moment it was called for until the Lease held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elected {
    pub(crate) within: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BrokerLine {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) amqp: SocketAddr,
    /// Over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) amqps: Option<SocketAddr>,
    pub(crate) http: SocketAddr,
    pub(crate) role: String,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
    Ready { brokers: &'a [BrokerLine] },
    Started { name: &'a str, pid: u32 },
    Primary { name: &'a str, epoch: u64, reason: &'a str },
}

impl Event {
    /// The events that programs are told of, as one line without its end.
    pub(crate) fn to_json(&self) -> Option<String> {
        let line = match self {
            Self::Ready { brokers } => Line::Ready { brokers },
            Self::Started { name, pid } => Line::Started { name, pid: *pid },
            Self::Primary { name, epoch, reason, .. } => Line::Primary { name, epoch: epoch.0, reason },
            _ => return None,
        };
        Some(serde_json::to_string(&line).expect("strings and numbers are always JSON"))
    }

    /// For people, one line or several.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Ready { brokers } => ready_text(brokers),
            Self::Started { name, pid } => format!("{name} started, process {pid}"),
            Self::Primary { name, epoch, reason, elected } => {
                let within = elected.map(|elected| format!("; elected in {}", milliseconds(elected.within)));
                format!("{name} is the primary of epoch {epoch}: {reason}{}", within.unwrap_or_default())
            }
            Self::Serving { name, epoch, after } => {
                format!("{name} serves epoch {epoch}, {} after its election", milliseconds(*after))
            }
            Self::Ended { name, pid, how } => format!("{name} ended, process {pid}: {how}"),
            Self::InSync { names, epoch } => format!("in sync at epoch {epoch}: {}", names.join(", ")),
            Self::Note { text } => text.clone(),
        }
    }
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

fn ready_text(brokers: &[BrokerLine]) -> String {
    let width = brokers.iter().map(|broker| broker.name.len()).max().unwrap_or(0).max("BROKER".len());
    let mut text = format!("\n  {:<width$}  {:<11}  {:<21}  {:<21}  PROCESS\n", "BROKER", "ROLE", "AMQP", "HTTP");
    for BrokerLine { name, pid, amqp, http, role, .. } in brokers {
        text.push_str(&format!(
            "  {name:<width$}  {role:<11}  {:<21}  {:<21}  {pid}\n",
            amqp.to_string(),
            http.to_string()
        ));
    }
    let addresses: Vec<_> = brokers.iter().map(|broker| format!("amqp://guest:guest@{}/", broker.amqp)).collect();
    let encrypted: Vec<_> = brokers.iter().filter_map(|broker| Some(broker.amqps?.to_string())).collect();
    text.push_str(&format!(
        "\nReady. Connect to {}\nAny of the addresses will do; a client that knows several finds the others when one is gone.\n\
         Stop with Ctrl-C.\n",
        addresses.join("  or  ")
    ));
    if !encrypted.is_empty() {
        text.push_str(&format!(
            "Over TLS at {}; trust ca.crt, and log in with a password or, as guest, with client.crt and client.key, all in the \
             directory amqps/ beside the data.\n",
            encrypted.join("  or  ")
        ));
    }
    text
}

/// Where events go. Cheap to clone; never waits.
#[derive(Clone, Debug)]
pub(crate) struct Events(mpsc::Sender<Event>);

impl Events {
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        (Self(sender), receiver)
    }

    pub(crate) fn tell(&self, event: Event) {
        if let Err(error) = self.0.try_send(event) {
            tracing::warn!(%error, "an event was not told: its reader is gone or too slow");
        }
    }
}

/// Writes each event until the last sender is gone, on a thread of its own: standard output may block.
pub(crate) fn print(mut events: mpsc::Receiver<Event>, json: bool) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while let Some(event) = events.blocking_recv() {
            // Nobody reads any more: the cluster goes on, as it would with its output thrown away.
            let _ = match (json, event.to_json()) {
                (true, Some(line)) => writeln!(std::io::stdout().lock(), "{line}"),
                (true, None) => writeln!(std::io::stderr().lock(), "{}", event.to_text()),
                (false, _) => writeln!(std::io::stdout().lock(), "{}", event.to_text()),
            };
        }
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn ready() -> Event {
        let line = |n: u16, role: &str| BrokerLine {
            name: format!("dev-{n}"),
            pid: 4711 + u32::from(n),
            amqp: ([127, 0, 0, 1], 5672 + n).into(),
            amqps: None,
            http: ([127, 0, 0, 1], 15000 + n).into(),
            role: role.into(),
        };
        Event::Ready { brokers: vec![line(0, "primary"), line(1, "backup")] }
    }

    fn check_json(event: Event, expected: Expect) {
        expected.assert_eq(&event.to_json().unwrap_or_else(|| "(not told to programs)".into()));
    }

    #[test]
    fn programs_are_told_three_kinds_of_event() {
        check_json(
            ready(),
            expect![[
                r#"{"event":"ready","brokers":[{"name":"dev-0","pid":4711,"amqp":"127.0.0.1:5672","http":"127.0.0.1:15000","role":"primary"},{"name":"dev-1","pid":4712,"amqp":"127.0.0.1:5673","http":"127.0.0.1:15001","role":"backup"}]}"#
            ]],
        );
        check_json(
            Event::Started { name: "dev-0".into(), pid: 4711 },
            expect![[r#"{"event":"started","name":"dev-0","pid":4711}"#]],
        );
        check_json(
            Event::Primary {
                name: "dev-1".into(),
                epoch: Epoch(2),
                reason: "dev-0 has \"ended\"".into(),
                elected: Some(Elected { within: Duration::from_millis(3) }),
            },
            expect![[r#"{"event":"primary","name":"dev-1","epoch":2,"reason":"dev-0 has \"ended\""}"#]],
        );
        check_json(
            Event::Ended { name: "dev-0".into(), pid: 4711, how: "killed".into() },
            expect!["(not told to programs)"],
        );
    }

    #[test]
    fn people_see_where_to_connect() {
        expect![[r#"

              BROKER  ROLE         AMQP                   HTTP                   PROCESS
              dev-0   primary      127.0.0.1:5672         127.0.0.1:15000        4711
              dev-1   backup       127.0.0.1:5673         127.0.0.1:15001        4712

            Ready. Connect to amqp://guest:guest@127.0.0.1:5672/  or  amqp://guest:guest@127.0.0.1:5673/
            Any of the addresses will do; a client that knows several finds the others when one is gone.
            Stop with Ctrl-C.
        "#]]
        .assert_eq(&ready().to_text());
    }

    #[test]
    fn both_see_where_tls_is() {
        let Event::Ready { mut brokers } = ready() else { panic!("another event") };
        brokers.truncate(1);
        brokers[0].amqps = Some(([127, 0, 0, 1], 5771).into());
        let event = Event::Ready { brokers };
        assert!(event.to_text().contains("\nOver TLS at 127.0.0.1:5771; trust ca.crt"), "{}", event.to_text());
        assert!(event.to_json().unwrap().contains(r#""amqp":"127.0.0.1:5672","amqps":"127.0.0.1:5771","http""#));
    }

    #[test]
    fn people_see_how_long_an_election_took() {
        let event = Event::Primary {
            name: "dev-1".into(),
            epoch: Epoch(2),
            reason: "dev-0's process has ended".into(),
            elected: Some(Elected { within: Duration::from_micros(3210) }),
        };
        expect!["dev-1 is the primary of epoch 2: dev-0's process has ended; elected in 3.2 ms"]
            .assert_eq(&event.to_text());
    }

    #[test]
    fn a_full_queue_of_events_holds_nobody_up() {
        let (events, mut told) = Events::channel();
        for pid in 0..5000 {
            events.tell(Event::Started { name: "dev-0".into(), pid });
        }
        drop(events);
        let mut count = 0;
        while told.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, MAX_WAITING_EVENTS);
    }
}
