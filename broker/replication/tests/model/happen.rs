//! What each step does.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use understudy_election::{Lease, Version};
use understudy_record::version::ClusterVersion;
use understudy_record::{Body, Epoch, Index, Message, QueueId, Record, ShortStr};
use understudy_replication::{
    Acknowledge, BackupOutput, FollowError, KeeperOutput, LeaseAnswer, LeaseRequest, OwnLog, PrimaryMessage,
    PrimaryOutput, StreamId, SwapOutcome,
};

use crate::cluster::{Action, Cluster, Link, REPLICAS, State};
use crate::lease_store::{Elector, Request, report};
use crate::replica::{LATER, LEASE, Leader, NOW, Order, Replica, Role, frame};
use crate::rules::Broken;

/// A step under way.
pub(crate) struct Step<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) state: State,
}

impl Step<'_> {
    /// `false` if nothing happens.
    pub(crate) fn take(&mut self, action: Action) -> bool {
        match action {
            Action::Publish { primary } => self.publish(primary),
            Action::JournalCompletes { replica } => self.journal_completes(replica),
            Action::Connect { backup, primary } => self.connect(backup, primary),
            Action::Deliver { link } => self.deliver(link),
            Action::Acknowledge { link } => self.acknowledge(link),
            Action::NoticeEnd { link } => {
                let Link { primary, stream, .. } = self.state.links.remove(link);
                self.primary(primary, |it, out| it.handle_stream_closed(NOW, stream, out));
            }
            Action::Break { link } => {
                self.state.used.breaks += 1;
                self.hang_up(self.state.links[link].backup);
            }
            Action::FindSilent { primary } => {
                self.state.used.silences += 1;
                self.primary(primary, |it, out| it.handle_timeout(LATER, out));
            }
            Action::AskLease { primary } => return self.ask_lease(primary),
            Action::ServeLease { request } => self.serve(request),
            Action::AnswerLease { request } => self.answer(request),
            Action::LoseAnswer { request } => self.lose_answer(request),
            Action::TakeRole { replica, elected } => return self.take_role(replica, elected),
            Action::ReadLease { replica } => {
                let Some(version) = self.state.store.current.version() else { return false };
                let present = version.incarnation().clone();
                self.replica(replica).blanks_seen = vec![present];
            }
            Action::SeeDeposed { primary } => return self.see_deposed(primary),
            Action::SeeDeleted { primary } => {
                let Some(leader) = self.leader(primary) else { return false };
                leader.keeper.handle_seen(None);
            }
            Action::Elect { candidate, reaching } => return self.elect(candidate, reaching),
            Action::Crash { replica } => self.crash(replica),
            Action::Restart { replica } => self.restart(replica),
            Action::LoseDisk { replica } => self.lose_disk(replica),
            Action::DeleteLease => {
                self.state.used.deletions += 1;
                self.state.store.delete();
            }
            Action::CreateLease => {
                self.state.store.create();
            }
            Action::ElectorFindsNone { knowing } => {
                self.state.used.recoveries += 1;
                let last = self.state.store.in_force().filter(|_| knowing).cloned();
                self.state.elector = Some(Elector { last, reports: Default::default() });
            }
            Action::ElectorHears { replica } => {
                if let Some(blank) = self.state.store.current.blank().cloned() {
                    self.replica(replica).see_blank(&blank);
                }
                let report = report(&self.state.replicas[replica]);
                if let Some(elector) = &mut self.state.elector {
                    elector.reports[replica] = report;
                }
            }
            Action::ElectorRecovers => return self.recover(),
            Action::Resume { replica, elected } => self.resume(replica, elected),
        }
        true
    }

    /// Journals that take no time have carried out everything.
    pub(crate) fn finish(mut self) -> State {
        if !self.cluster.bounds.slow_journals {
            while let Some(busy) = (0..REPLICAS).find(|number| !self.state.replicas[*number].orders.is_empty()) {
                self.journal_completes(busy);
            }
        }
        if self.cluster.is_broken(Broken::CountsOldSetOnly) {
            self.feign_newcomers(false);
        }
        self.forget_what_cannot_matter();
        self.state
    }

    fn replica(&mut self, number: usize) -> &mut Replica {
        Arc::make_mut(&mut self.state.replicas[number])
    }

    fn leader(&mut self, number: usize) -> Option<&mut Leader> {
        match &mut self.replica(number).role {
            Role::Primary(leader) => Some(leader),
            _ => None,
        }
    }

    fn journal_completes(&mut self, number: usize) {
        let replica = self.replica(number);
        replica.sync();
        let last = replica.disk.last();
        match replica.role {
            Role::Down => {}
            Role::Backup(_, session) => self.backup(number, |it, out| {
                it.handle_durable(session, last, out);
                Ok(())
            }),
            Role::Primary(_) => self.primary(number, |it, out| it.handle_durable(NOW, it.epoch(), last, out)),
        }
    }

    // The primary.

    fn publish(&mut self, primary: usize) {
        self.state.used.publishes += 1;
        let message = Message {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::EMPTY,
            properties: Bytes::new(),
            persistent: true,
            parts: None,
            body: Body::new(Bytes::copy_from_slice(&[self.state.used.publishes])),
        };
        self.write(primary, Record::Publish { targets: vec![QueueId(Index(1))], message });
    }

    fn write(&mut self, number: usize, record: Record) {
        let Some(leader) = self.leader(number) else { return };
        let frames = vec![frame(leader.primary.epoch(), leader.primary.last().index.next(), &record)];
        self.replica(number).orders.push(Order::Append(frames.clone()));
        self.primary(number, |it, out| it.handle_appended(NOW, &frames, out));
    }

    fn primary(
        &mut self,
        number: usize,
        input: impl FnOnce(&mut understudy_replication::Primary, &mut Vec<PrimaryOutput>),
    ) {
        let Some(leader) = self.leader(number) else { return };
        let mut out = Vec::new();
        input(&mut leader.primary, &mut out);
        self.carry_out_primary(number, out);
    }

    fn carry_out_primary(&mut self, number: usize, outputs: Vec<PrimaryOutput>) {
        for output in outputs {
            match output {
                PrimaryOutput::Send(stream, message) => self.send(number, stream, message),
                PrimaryOutput::Close(stream, _) => self.cut(number, stream),
                PrimaryOutput::ProposeSet(set) => {
                    let Some(leader) = self.leader(number) else { return };
                    let shrinks = set.len() < leader.primary.in_force().len();
                    leader.keeper.propose(set);
                    if shrinks && self.cluster.is_broken(Broken::ShrinksBeforeSwap) {
                        self.primary(number, |it, out| it.handle_outcome(NOW, SwapOutcome::Applied, out));
                    }
                }
                PrimaryOutput::SetInForce(set) => {
                    self.write(number, Record::InSyncSet { members: set.into_iter().collect() });
                }
                PrimaryOutput::Committed { committed, .. } => self.note_commit(number, committed),
                PrimaryOutput::Demote { .. } => return self.demote(number),
                PrimaryOutput::ReadLog(stream, from) => {
                    let log = self.state.replicas[number].received();
                    let frames = log.into_iter().filter(|frame| frame.position.index >= from).collect();
                    self.primary(number, |it, out| it.handle_log_read(NOW, stream, from, Ok(frames), out));
                }
                PrimaryOutput::TakeBase(..) => unreachable!("no log is cut, so none is needed: {output:?}"),
                PrimaryOutput::EndSync(_) | PrimaryOutput::CloseClients(_) | PrimaryOutput::ServeClients => {}
            }
        }
    }

    fn send(&mut self, primary: usize, stream: StreamId, message: PrimaryMessage) {
        if matches!(&message, PrimaryMessage::Records(records) if records.frames.is_empty()) {
            return; // a heartbeat
        }
        let mut links = self.state.links.iter_mut();
        if let Some(link) = links.find(|link| link.primary == primary && link.stream == stream && link.open) {
            link.down.push_back(message);
        }
    }

    /// The primary has ended a stream. What it had sent may still arrive, so had it been sooner.
    fn cut(&mut self, primary: usize, stream: StreamId) {
        let Some(place) = self.state.links.iter().position(|it| it.primary == primary && it.stream == stream) else {
            return;
        };
        let link = self.state.links.remove(place);
        if link.open {
            self.disconnected(link.backup);
        }
    }

    fn note_commit(&mut self, number: usize, committed: Index) {
        let replica = &self.state.replicas[number];
        let Some(leader) = replica.leader() else { return };
        let (epoch, me) = (leader.primary.epoch(), replica.identity());
        let log = replica.received();
        let log = &log[..committed.0 as usize];
        let ledger = &mut self.state.ledger;
        let known = ledger.committers.entry(epoch).or_insert_with(|| me.clone());
        ledger.two_committed |= *known != me;
        ledger.confirmed_after_failover |= epoch > Epoch(1);
        ledger.parted |= !log.starts_with(&ledger.committed) && !ledger.committed.starts_with(log);
        if log.len() > ledger.committed.len() {
            ledger.committed = log.to_vec();
        }
    }

    /// The log is read again, and what waits for this primary learns that it is none.
    fn demote(&mut self, number: usize) {
        let in_memory = self.cluster.names_processes();
        self.end_role(number);
        let replica = self.replica(number);
        replica.sync();
        replica.start(in_memory);
    }

    fn end_role(&mut self, number: usize) {
        let (mine, others) = std::mem::take(&mut self.state.links).into_iter().partition(|it| it.primary == number);
        self.state.links = others;
        let followers: Vec<Link> = mine;
        for link in followers.iter().filter(|link| link.open) {
            self.disconnected(link.backup);
        }
        for request in self.state.requests.iter_mut().filter(|request| request.replica == number) {
            request.given_up = true;
        }
    }

    // The backup.

    fn backup(
        &mut self,
        number: usize,
        input: impl FnOnce(&mut understudy_replication::Backup, &mut Vec<BackupOutput>) -> Result<(), FollowError>,
    ) {
        let Role::Backup(backup, _) = &mut self.replica(number).role else { return };
        let mut out = Vec::new();
        let result = input(backup, &mut out);
        self.carry_out_backup(number, out);
        if result.is_err() {
            self.hang_up(number);
        }
    }

    fn carry_out_backup(&mut self, number: usize, outputs: Vec<BackupOutput>) {
        for output in outputs {
            let replica = self.replica(number);
            let reported = match &mut replica.role {
                Role::Backup(_, session) => session,
                _ => return,
            };
            match output {
                BackupOutput::PersistEpoch(epoch) => replica.orders.push(Order::PersistEpoch(epoch)),
                BackupOutput::Truncate(after) => replica.orders.push(Order::Truncate(after)),
                BackupOutput::Append(session, frames) => {
                    *reported = session;
                    replica.orders.push(Order::Append(frames));
                }
                BackupOutput::Barrier(session) => {
                    *reported = session;
                    replica.orders.push(Order::Barrier);
                }
                BackupOutput::Acknowledge(ack) => {
                    let mut links = self.state.links.iter_mut();
                    if let Some(link) = links.find(|link| link.backup == number && link.open) {
                        link.up = Some(ack);
                    }
                }
                BackupOutput::Close(_) => self.hang_up(number),
                BackupOutput::Apply(_) => {}
                _ => unreachable!("no follower needs a base: {output:?}"),
            }
        }
        if self.cluster.is_broken(Broken::AcknowledgesBeforeDurable) {
            let replica = self.replica(number);
            let received = replica.received().last().map(|frame| frame.position.index).unwrap_or_default();
            if let Role::Backup(backup, session) = &mut replica.role {
                let mut out = Vec::new();
                backup.handle_durable(*session, received, &mut out);
                if let Some(BackupOutput::Acknowledge(ack)) = out.pop() {
                    let mut links = self.state.links.iter_mut();
                    if let Some(link) = links.find(|link| link.backup == number && link.open) {
                        link.up = Some(ack);
                    }
                }
            }
        }
    }

    fn disconnected(&mut self, number: usize) {
        self.backup(number, |it, out| {
            it.handle_disconnected(NOW, true, out);
            Ok(())
        });
    }

    /// The backup ends its connection; what it had said may still arrive.
    fn hang_up(&mut self, number: usize) {
        for link in self.state.links.iter_mut().filter(|link| link.backup == number && link.open) {
            (link.open, link.down) = (false, VecDeque::new());
        }
        self.disconnected(number);
    }

    fn connect(&mut self, number: usize, to: usize) {
        let leads =
            self.state.replicas[to].leader().map(|leader| (leader.primary.epoch(), leader.primary.history().clone()));
        let Some((epoch, history)) = leads else { return };
        if self.state.links.iter().any(|link| link.backup == number && link.open) {
            self.hang_up(number);
        }
        let in_memory = self.cluster.names_processes();
        let takes_lower = self.cluster.is_broken(Broken::TakesLowerEpochs);
        let replica = self.replica(number);
        replica.connects += 1;
        if takes_lower && replica.backup().is_some_and(|backup| backup.known_epoch() > epoch) {
            replica.disk.epoch = epoch;
            replica.start(in_memory);
        }
        let Role::Backup(backup, _) = &mut replica.role else { return };
        let mut hello = backup.handle_connected(NOW);
        if self.cluster.is_broken(Broken::KeepsItsTail) {
            let end = hello.history.last().index;
            hello.history = history;
            hello.history.truncate_after(end);
        }
        let streams = [number, number + REPLICAS].map(|stream| StreamId(stream as u64));
        let older = self.state.links.iter().position(|link| (link.backup, link.primary) == (number, to));
        let older = older.map(|place| self.state.links[place].clone());
        let stream = if older.as_ref().is_some_and(|link| link.stream == streams[0]) { streams[1] } else { streams[0] };
        let by_name = self.cluster.is_broken(Broken::AcknowledgementsByName);
        let up = older.and_then(|link| link.up).filter(|_| by_name);
        self.state.links.push(Link { backup: number, primary: to, stream, open: true, down: VecDeque::new(), up });
        self.primary(to, |it, out| it.handle_hello(NOW, stream, &hello, 0, out));
        if self.cluster.is_broken(Broken::AdmitsTooEarly) {
            self.feign_newcomers(true);
        }
    }

    fn deliver(&mut self, link: usize) {
        let link = &mut self.state.links[link];
        let number = link.backup;
        let Some(message) = link.down.pop_front() else { return };
        match message {
            PrimaryMessage::Welcome(welcome) => self.backup(number, |it, out| it.handle_welcome(NOW, welcome, out)),
            PrimaryMessage::Records(records) => self.backup(number, |it, out| it.handle_records(NOW, records, out)),
            PrimaryMessage::Base(base) => self.backup(number, |it, out| it.handle_base(NOW, base, out)),
            PrimaryMessage::Refusal(_) => self.hang_up(number),
            PrimaryMessage::Waiting(waiting) => self.backup(number, |it, out| it.handle_waiting(NOW, waiting, out)),
            PrimaryMessage::Version(_) => {} // all are of one build
        }
    }

    fn acknowledge(&mut self, link: usize) {
        let link = &mut self.state.links[link];
        let (primary, stream) = (link.primary, link.stream);
        let Some(ack) = link.up.take() else { return };
        self.primary(primary, |it, out| it.handle_acknowledge(NOW, stream, ack, out));
    }

    /// Broken rules: followers outside the set in force are taken to have all that they were sent. `at_once`: before they are
    /// proposed.
    fn feign_newcomers(&mut self, at_once: bool) {
        for link in self.state.links.clone().iter().filter(|link| link.open) {
            let member = self.state.replicas[link.backup].identity().member(self.cluster.names_processes());
            let Some(leader) = self.state.replicas[link.primary].leader() else { continue };
            let (epoch, last) = (leader.primary.epoch(), leader.primary.last().index);
            let known =
                leader.primary.followers().any(|it| it.identity.member(false).name == member.name && it.durable < last);
            let proposed = leader.keeper.proposed().is_some_and(|set| set.contains(&member));
            if !leader.primary.in_force().contains(&member) && known && (at_once || proposed) {
                let ack = Acknowledge { epoch, durable: last, received: last };
                self.primary(link.primary, |it, out| it.handle_acknowledge(NOW, link.stream, ack, out));
            }
        }
    }

    // The Lease.

    fn ask_lease(&mut self, number: usize) -> bool {
        let cluster = self.cluster;
        let Some(leader) = self.leader(number) else { return false };
        let blank = leader.keeper.blank().cloned();
        let Some(hears_all) = cluster.hears_all(leader) else {
            leader.proof = Some((blank, leader.primary.last().index.next()));
            let members = leader.primary.in_force().iter().cloned().collect();
            self.write(number, Record::InSyncSet { members });
            return true;
        };
        if !leader.keeper.is_deleted() {
            leader.proof = None;
        }
        let mut keeper = leader.keeper.clone();
        let Ok(Some(request)) = keeper.poll_request(LATER, true, hears_all) else { return false };
        leader.keeper = keeper;
        let (me, store) = (self.state.replicas[number].identity(), &self.state.store);
        let as_it_was = || store.in_force().and_then(|lease| lease.as_it_was(&me, LEASE).ok());
        let carries = cluster.is_broken(Broken::CreationsCarryAState) && request == LeaseRequest::Create;
        let carries = carries.then(as_it_was).flatten();
        self.state.requests.push(Request { replica: number, request, answer: None, given_up: false, carries });
        true
    }

    fn serve(&mut self, place: usize) {
        let mut request = self.state.requests.remove(place);
        let before = self.state.set_of().cloned().unwrap_or_default();
        if self.cluster.is_broken(Broken::RecreatesWithoutGap) {
            request.forget_given();
        }
        let was_blank = self.state.store.current.blank().is_some();
        let answer = self.state.store.serve(&request);
        let ledger = &mut self.state.ledger;
        if let (Some(lease), Some(newest)) = (self.state.store.current.lease(), ledger.committers.keys().next_back()) {
            ledger.epoch_lowered |= lease.epoch() < *newest;
        }
        if matches!(answer, LeaseAnswer::Written(_)) {
            self.state.ledger.joined |= self.state.set_of().is_some_and(|set| !set.is_subset(&before));
            self.state.ledger.recreated |= was_blank;
        }
        if !request.given_up && self.cluster.bounds.slow_answers {
            request.answer = Some(answer);
            self.state.requests.push(request);
        } else if !request.given_up {
            self.keeper(request.replica, answer);
        }
    }

    fn answer(&mut self, place: usize) {
        let request = self.state.requests.remove(place);
        if let Some(answer) = request.answer {
            self.keeper(request.replica, answer);
        }
    }

    /// The caller hears nothing. What was not served yet stays under way.
    fn lose_answer(&mut self, place: usize) {
        self.state.used.lost_answers += 1;
        let mut request = self.state.requests.remove(place);
        let number = request.replica;
        let is_write = !matches!(request.request, LeaseRequest::Read);
        let old_version = is_write && self.state.store.may_take(&request.request);
        if request.answer.is_none() && is_write {
            request.given_up = true;
            self.state.requests.push(request);
        }
        self.keeper(number, LeaseAnswer::Unknown(String::new()));
        if old_version && self.cluster.is_broken(Broken::ReadsSettle) {
            self.primary(number, |it, out| it.handle_outcome(NOW, SwapOutcome::Refused, out));
        }
        if is_write && self.cluster.is_broken(Broken::TakesSilenceForSuccess) {
            self.primary(number, |it, out| it.handle_outcome(NOW, SwapOutcome::Applied, out));
        }
    }

    fn keeper(&mut self, number: usize, answer: LeaseAnswer) {
        let Some(leader) = self.leader(number) else { return };
        for output in leader.keeper.handle_answer(NOW, answer) {
            match output {
                KeeperOutput::Outcome(outcome) => self.primary(number, |it, out| it.handle_outcome(NOW, outcome, out)),
                KeeperOutput::Held => self.primary(number, |it, out| it.handle_lease_held(NOW, out)),
                KeeperOutput::Demoted { .. } => return self.demote(number),
                KeeperOutput::Trouble(_) => {}
            }
        }
    }

    fn see_deposed(&mut self, number: usize) -> bool {
        let elected: Vec<Lease> = self.state.store.elected.iter().map(|(lease, _)| lease.clone()).collect();
        let Some(leader) = self.leader(number) else { return false };
        let deposed = elected.iter().any(|lease| !leader.keeper.handle_seen(Some(lease)).is_empty());
        if deposed {
            self.demote(number);
        }
        deposed
    }

    /// A watch shows the replica that it was elected, however late.
    fn take_role(&mut self, number: usize, elected: usize) -> bool {
        let (lease, written) = self.state.store.elected[elected].clone();
        let in_memory = self.cluster.names_processes();
        let replica = self.replica(number);
        let me = replica.identity();
        let Role::Backup(backup, _) = &mut replica.role else { return false };
        if !lease.in_sync().contains(&me.member(in_memory)) {
            return false;
        }
        let mut out = Vec::new();
        let Ok(log) = backup.handle_elected(lease.epoch(), ClusterVersion::FIRST, &mut out) else {
            return false;
        };
        self.carry_out_backup(number, out);
        self.hang_up(number);
        let of_this_epoch = |it: &Arc<Replica>| it.received().iter().any(|frame| frame.position.epoch == lease.epoch());
        self.state.ledger.epoch_lowered |= self.state.replicas.iter().any(of_this_epoch);
        self.begin(number, log, lease, written);
        true
    }

    fn begin(&mut self, number: usize, log: OwnLog, lease: Lease, written: Version) {
        let in_memory = self.cluster.names_processes();
        let in_sync = lease.in_sync().iter().cloned().collect();
        let replica = self.replica(number);
        replica.lead(log, lease, written, in_memory);
        let primary = replica.identity();
        self.write(number, Record::EpochStart { primary, in_sync });
        if self.cluster.is_broken(Broken::CommitsBeforeOwnWrite) {
            self.primary(number, |it, out| it.handle_lease_held(NOW, out));
        }
    }

    /// Broken rule 8.
    fn resume(&mut self, number: usize, elected: usize) {
        let (lease, written) = self.state.store.elected[elected].clone();
        self.hang_up(number);
        let Some(backup) = self.state.replicas[number].backup() else { return };
        let log = OwnLog { history: backup.history().clone(), first: backup.first(), durable: backup.durable() };
        self.begin(number, log, lease, written);
    }

    // What fails.

    fn crash(&mut self, number: usize) {
        self.state.used.crashes += 1;
        self.fall(number);
        if self.cluster.bounds.in_memory {
            self.replica(number).disk.log.clear();
        }
    }

    fn fall(&mut self, number: usize) {
        self.end_role(number);
        for link in self.state.links.iter_mut().filter(|link| link.backup == number && link.open) {
            (link.open, link.down) = (false, VecDeque::new());
        }
        let replica = self.replica(number);
        replica.orders.clear();
        (replica.role, replica.connects) = (Role::Down, 0);
        replica.blanks_seen.clear();
    }

    fn restart(&mut self, number: usize) {
        let (in_memory, resumes) =
            (self.cluster.names_processes(), self.cluster.is_broken(Broken::ResumesAfterRestart));
        let replica = self.replica(number);
        if !resumes {
            replica.process += 1;
        }
        replica.start(in_memory);
    }

    fn lose_disk(&mut self, number: usize) {
        self.state.used.lost_disks += 1;
        self.fall(number);
        let (in_memory, same) = (self.cluster.names_processes(), self.cluster.is_broken(Broken::NewStoreIsOldStore));
        let replica = self.replica(number);
        replica.disk = Default::default();
        replica.process += 1;
        if !same {
            replica.store += 1;
        }
        replica.start(in_memory);
    }

    /// States that differ only in what no step looks at are one.
    fn forget_what_cannot_matter(&mut self) {
        let deletions_left = self.state.used.deletions < self.cluster.bounds.deletions;
        let store = &self.state.store;
        self.state.requests.retain(|request| {
            // One that makes a blank Lease late does what anybody may do at any time.
            let makes_something = request.request != LeaseRequest::Create || request.carries.is_some();
            let may_take = store.may_take(&request.request) || (deletions_left && request.carries.is_some());
            !request.given_up || (request.answer.is_none() && may_take && makes_something)
        });
        self.state.links.sort_by_key(|link| (link.backup, link.primary, link.stream));
        if store.current.lease().is_some() && !self.cluster.is_broken(Broken::RecoversFromOldReports) {
            self.state.elector = None;
        }
    }
}
