//! What the supervisor knows of its brokers, folded from what each says of itself over `Control.Watch` and from what
//! became of its process, into the [`View`] that elections are decided on. No clock, no socket, no judgement.
//!
//! A broker's *start* is counted here, so that a word that was on its way when the process ended does not bring it back.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_election::{
    Contact, Elector, Force, Loss, Register, ReplicaView, Report, Role, Spec, StoreState, Timings, View,
};
use understudy_proto::{self as proto, ReadError, Said, read};
use understudy_record::ReplicaName;

/// How often each broker speaks at least.
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);
/// So many intervals without a word are silence. How long silence must last to matter is the election's business.
const MISSED_INTERVALS: u32 = 3;

/// Counts the processes that have run under one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Start(pub(crate) u64);

#[derive(Debug)]
struct Broker {
    start: Start,
    /// The process that runs; `None` between an end and a start.
    pid: Option<u32>,
    contact: Contact,
    last_heard: Duration,
    report: Option<Report>,
    status: Option<proto::Status>,
}

#[derive(Debug)]
pub(crate) struct Brokers {
    cluster: String,
    brokers: BTreeMap<ReplicaName, Broker>,
}

impl Brokers {
    pub(crate) fn new(cluster: &str, names: impl IntoIterator<Item = ReplicaName>) -> Self {
        let unheard = || Broker {
            start: Start::default(),
            pid: None,
            contact: Contact::Unknown,
            last_heard: Duration::ZERO,
            report: None,
            status: None,
        };
        Self { cluster: cluster.into(), brokers: names.into_iter().map(|name| (name, unheard())).collect() }
    }

    /// The last that a running broker said; `None` while it has not spoken since its process started.
    pub(crate) fn status(&self, name: &ReplicaName) -> Option<&proto::Status> {
        self.brokers.get(name).filter(|broker| broker.pid.is_some())?.status.as_ref()
    }

    pub(crate) fn pid(&self, name: &ReplicaName) -> Option<u32> {
        self.brokers.get(name)?.pid
    }

    /// A process runs under this name. It has not said anything yet, so a predecessor's end still stands.
    pub(crate) fn handle_started(&mut self, name: &ReplicaName, pid: u32) -> Start {
        let Some(broker) = self.brokers.get_mut(name) else { return Start::default() };
        broker.start.0 += 1;
        broker.pid = Some(pid);
        broker.status = None;
        broker.start
    }

    /// The process that was last started under this name has been seen to exit.
    pub(crate) fn handle_ended(&mut self, name: &ReplicaName) {
        let Some(broker) = self.brokers.get_mut(name) else { return };
        broker.pid = None;
        broker.status = None;
        broker.contact = Contact::Gone;
    }

    /// The stream to it broke, or a new one was refused.
    pub(crate) fn handle_reset(&mut self, now: Duration, name: &ReplicaName, start: Start) {
        let Some(broker) = self.speaking(name, start) else { return };
        if broker.contact == Contact::Reachable {
            broker.contact = Contact::Lost { since: now, how: Loss::Reset };
        }
    }

    pub(crate) fn handle_status(
        &mut self,
        now: Duration,
        name: &ReplicaName,
        start: Start,
        status: proto::Status,
    ) -> Result<(), ReadError> {
        let said = read(&status, &self.cluster, name, now)?;
        let Some(broker) = self.speaking(name, start) else { return Ok(()) };
        broker.last_heard = now;
        match said {
            // It gave its role up for good, by its own word: as good as gone, and sooner than its exit.
            Said::Ended(_) => broker.contact = Contact::Gone,
            // It does not know yet where its log ends. A predecessor's end stands until it does.
            Said::Recovering(identity) => {
                if let Some(known) = broker.report.as_mut().filter(|known| known.identity == identity) {
                    known.state = StoreState::Dirty;
                    known.role = Role::Idle;
                    broker.contact = Contact::Reachable;
                }
            }
            Said::Report(report) => {
                broker.contact = Contact::Reachable;
                broker.report = Some(report);
            }
        }
        broker.status = Some(status);
        Ok(())
    }

    pub(crate) fn view(&self, now: Duration, register: &Register, processes_in_set: bool, timings: Timings) -> View {
        let seen = |(name, broker): (&ReplicaName, &Broker)| {
            let silent = now.saturating_sub(broker.last_heard) > INTERVAL * MISSED_INTERVALS;
            let contact = match broker.contact {
                Contact::Reachable if silent => Contact::Lost { since: broker.last_heard, how: Loss::Silent },
                contact => contact,
            };
            (name.clone(), ReplicaView { contact, report: broker.report.clone() })
        };
        View {
            elector: Elector::Operator,
            register: register.clone(),
            replicas: self.brokers.iter().map(seen).collect(),
            spec: Spec {
                replicas: self.brokers.keys().cloned().collect(),
                processes_in_set,
                preferred: None,
                forced: Force::No,
                ..Spec::default()
            },
            timings,
        }
    }

    /// The broker, if it is the process of this start that speaks and it still runs.
    fn speaking(&mut self, name: &ReplicaName, start: Start) -> Option<&mut Broker> {
        self.brokers.get_mut(name).filter(|broker| broker.pid.is_some() && broker.start == start)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use understudy_election::LeaseTracker;
    use understudy_record::{Epoch, Index, Position};

    use super::*;

    const STORE: &str = "00000000000000000000000000000abc";

    pub(crate) fn status(name: &str, process: u64, role: proto::Role) -> proto::Status {
        proto::Status {
            cluster: "dev".into(),
            identity: Some(proto::Identity {
                name: name.into(),
                store: STORE.into(),
                process: format!("{process:016x}"),
            }),
            role: role.into(),
            epoch: 3,
            last: Some(proto::Position { epoch: 3, index: 40 }),
            clean: true,
            in_sync: vec![format!("{name}/{STORE}")],
            ..Default::default()
        }
    }

    fn name(text: &str) -> ReplicaName {
        ReplicaName::new(text)
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn brokers() -> Brokers {
        Brokers::new("dev", ["dev-0", "dev-1"].map(name))
    }

    fn seen(brokers: &Brokers, now: Duration) -> ReplicaView {
        let view = brokers.view(now, LeaseTracker::default().register(), false, Timings::default());
        view.replicas[&name("dev-0")].clone()
    }

    /// dev-0 runs and has said `said` at 1 s.
    fn said(said: proto::Status) -> (Brokers, Start) {
        let mut brokers = brokers();
        let start = brokers.handle_started(&name("dev-0"), 4711);
        brokers.handle_status(ms(1000), &name("dev-0"), start, said).unwrap();
        (brokers, start)
    }

    #[test]
    fn a_word_becomes_a_report_with_ages_turned_into_points_in_time() {
        let heard =
            proto::HeardPrimary { primary: None, epoch: 2, lost: Some(proto::Lost { since_ms: 300, reset: true }) };
        let (brokers, _) = said(proto::Status { heard: Some(heard), ..status("dev-0", 7, proto::Role::Backup) });
        let replica = seen(&brokers, ms(1000));
        assert_eq!(replica.contact, Contact::Reachable);
        let report = replica.report.unwrap();
        assert_eq!(report.identity.to_string(), format!("dev-0/{STORE}/0000000000000007"));
        assert_eq!(report.last, Position { epoch: Epoch(3), index: Index(40) });
        assert_eq!(report.role, Role::Lost { epoch: Epoch(2), since: ms(700), how: Loss::Reset });
        assert_eq!(report.recorded_set.len(), 1);
    }

    #[test]
    fn a_process_seen_to_exit_is_gone_until_its_successor_knows_its_log() {
        let (mut brokers, first) = said(status("dev-0", 7, proto::Role::Primary));
        brokers.handle_ended(&name("dev-0"));
        assert_eq!(seen(&brokers, ms(1001)).contact, Contact::Gone);
        // A word and a reset that were on their way change nothing.
        brokers.handle_status(ms(1002), &name("dev-0"), first, status("dev-0", 7, proto::Role::Primary)).unwrap();
        brokers.handle_reset(ms(1002), &name("dev-0"), first);
        let second = brokers.handle_started(&name("dev-0"), 4711);
        brokers.handle_status(ms(1003), &name("dev-0"), first, status("dev-0", 7, proto::Role::Primary)).unwrap();
        assert_eq!(seen(&brokers, ms(1004)).contact, Contact::Gone);
        brokers.handle_status(ms(1005), &name("dev-0"), second, status("dev-0", 8, proto::Role::Recovering)).unwrap();
        assert_eq!(seen(&brokers, ms(1006)).contact, Contact::Gone);
        brokers.handle_status(ms(1007), &name("dev-0"), second, status("dev-0", 8, proto::Role::Idle)).unwrap();
        let replica = seen(&brokers, ms(1008));
        assert_eq!(replica.contact, Contact::Reachable);
        assert_eq!(replica.report.unwrap().identity.process.0, 8);
    }

    #[test]
    fn a_fresh_broker_that_still_recovers_has_not_answered() {
        let (brokers, _) = said(status("dev-0", 7, proto::Role::Recovering));
        let replica = seen(&brokers, ms(1000));
        assert_eq!(replica.contact, Contact::Unknown);
        assert_eq!(replica.report, None);
    }

    #[test]
    fn a_demoted_primary_that_rebuilds_its_state_is_heard_and_not_electable() {
        let (mut brokers, start) = said(status("dev-0", 7, proto::Role::Primary));
        brokers.handle_status(ms(1100), &name("dev-0"), start, status("dev-0", 7, proto::Role::Recovering)).unwrap();
        let replica = seen(&brokers, ms(1100));
        assert_eq!(replica.contact, Contact::Reachable);
        assert_eq!(replica.report.unwrap().state, StoreState::Dirty);
    }

    #[test]
    fn one_that_says_it_has_ended_is_gone_before_its_process_is() {
        let (mut brokers, start) = said(status("dev-0", 7, proto::Role::Primary));
        brokers.handle_status(ms(1100), &name("dev-0"), start, status("dev-0", 7, proto::Role::Ended)).unwrap();
        assert_eq!(seen(&brokers, ms(1100)).contact, Contact::Gone);
    }

    #[test]
    fn a_broken_stream_is_a_reset_and_no_word_is_silence_since_the_last_one() {
        let (mut brokers, start) = said(status("dev-0", 7, proto::Role::Backup));
        assert_eq!(seen(&brokers, ms(1700)).contact, Contact::Reachable);
        assert_eq!(seen(&brokers, ms(1800)).contact, Contact::Lost { since: ms(1000), how: Loss::Silent });
        brokers.handle_reset(ms(1900), &name("dev-0"), start);
        brokers.handle_reset(ms(2000), &name("dev-0"), start);
        assert_eq!(seen(&brokers, ms(2100)).contact, Contact::Lost { since: ms(1900), how: Loss::Reset });
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let mut brokers = brokers();
        let start = brokers.handle_started(&name("dev-0"), 4711);
        let mut refused = |status| brokers.handle_status(ms(1), &name("dev-0"), start, status).unwrap_err().to_string();
        assert!(refused(status("dev-1", 7, proto::Role::Idle)).contains("calls itself \"dev-1\""));
        let foreign = proto::Status { cluster: "orders".into(), ..status("dev-0", 7, proto::Role::Idle) };
        assert!(refused(foreign).contains("\"orders\""));
        let anonymous = proto::Status { identity: None, ..status("dev-0", 7, proto::Role::Idle) };
        assert!(refused(anonymous).contains("no identity"));
        let garbled = proto::Status { in_sync: vec!["dev-0".into()], ..status("dev-0", 7, proto::Role::Idle) };
        assert!(refused(garbled).contains("in-sync member"));
    }
}
