//! Followers' streams and backlogs: what one end says arrives at the other, in order, late, or never.

use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use understudy_node::{BacklogReply, BacklogRequest, Event, FollowerEvent, Target, ToPrimary, UpstreamEvent};
use understudy_replication::{Backlog, PrimaryMessage, Resume, StreamId};

use crate::network::{Fetch, Link, Place};
use crate::world::{ForProcess, Happening, World};

/// A connection that cannot be made is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1000);

impl World {
    pub(crate) fn dial(&mut self, place: Place, number: u64, target: &Target) {
        let Some(to) = self.place_of(&target.name) else { return };
        let (now, delay, id) = (self.schedule.now, self.delay(), self.network.number());
        self.network.links.insert(
            id,
            Link {
                follower: place,
                number,
                target: to,
                primary: None,
                words: None,
                messages: None,
                follower_open: true,
                primary_open: false,
                up_at: now,
                down_at: now,
            },
        );
        let machine = &self.machines[to];
        let (cut, process) = (self.network.is_cut(place.machine, to, now), machine.process.as_ref());
        let not_connected = |reset| ForProcess::NotConnected(id, reset);
        match process {
            Some(process) if !cut => {
                let primary = Place { machine: to, process: process.key };
                self.schedule.after(delay, Happening::To(primary, ForProcess::Arrives(id)));
                // If nobody answers, the connection is given up.
                self.schedule.after(CONNECT_TIMEOUT, Happening::To(place, not_connected(false)));
            }
            None if !cut && machine.has_power => self.schedule.after(delay, Happening::To(place, not_connected(true))),
            _ => self.schedule.after(CONNECT_TIMEOUT, Happening::To(place, not_connected(false))),
        }
    }

    pub(crate) fn link_arrives(&mut self, place: Place, id: u64) {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(link) = self.network.links.get_mut(&id).filter(|link| link.follower_open) else { return };
        link.primary = Some(place);
        link.primary_open = true;
        let follower = link.follower;
        let at = self.network.arrival(place.machine, follower.machine, now, delay);
        self.schedule.at(at, Happening::To(follower, ForProcess::Connected(id)));
    }

    pub(crate) fn link_connected(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id).filter(|link| link.follower_open) else { return Ok(()) };
        let (sender, words) = tokio::sync::mpsc::unbounded_channel();
        link.words = Some(words);
        let number = link.number;
        self.turn(place, |process| process.node.handle(Event::Upstream(number, UpstreamEvent::Connected(sender))))
    }

    /// One end closes; the other hears of it, after what was sent before, if `says_so` and the way is open.
    pub(crate) fn close_link(&mut self, id: u64, at_primary: bool, says_so: bool) {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(link) = self.network.links.get_mut(&id) else { return };
        let (from, to, sent) = if at_primary {
            link.primary_open = false;
            link.messages = None;
            (link.target, Some(link.follower), link.down_at)
        } else {
            link.follower_open = false;
            link.words = None;
            (link.follower.machine, link.primary, link.up_at)
        };
        if let Some(to) = to.filter(|_| says_so) {
            let at = self.network.arrival(from, to.machine, now, delay).max(sent);
            self.schedule.at(at, Happening::To(to, ForProcess::LinkEnded(id)));
        }
        self.forget_link(id);
    }

    /// Something between the two ends it; both hear of it.
    pub(crate) fn break_link(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        for place in std::iter::once(link.follower).chain(link.primary) {
            self.schedule.after(Duration::ZERO, Happening::To(place, ForProcess::LinkEnded(id)));
        }
    }

    pub(crate) fn forget_link(&mut self, id: u64) {
        let over = self.network.links.get(&id).is_some_and(|link| !link.follower_open && !link.primary_open);
        if over {
            self.network.links.remove(&id);
            self.network.fetches.retain(|_, fetch| fetch.link != id);
        }
    }

    pub(crate) fn link_ended(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id) else { return Ok(()) };
        if link.follower == place && link.follower_open {
            link.follower_open = false;
            link.words = None;
            let number = link.number;
            self.forget_link(id);
            return self.turn(place, |process| {
                let closed = UpstreamEvent::Closed { reset: true, reason: "the stream ended".into() };
                process.node.handle(Event::Upstream(number, closed));
            });
        }
        if link.primary == Some(place) && link.primary_open {
            link.primary_open = false;
            link.messages = None;
            self.forget_link(id);
            return self.turn(place, |process| {
                process.node.handle(Event::Follower(StreamId(id), FollowerEvent::Closed));
            });
        }
        Ok(())
    }

    pub(crate) fn collect_words(&mut self, place: Place) {
        let own: Vec<u64> =
            self.network.links.iter().filter(|(_, link)| link.follower == place).map(|(id, _)| *id).collect();
        for id in own {
            loop {
                let delay = self.delay();
                let now = self.schedule.now;
                let Some(link) = self.network.links.get_mut(&id) else { break };
                let Some(Ok(word)) = link.words.as_mut().map(tokio::sync::mpsc::UnboundedReceiver::try_recv) else {
                    break;
                };
                let Some(primary) = link.primary.filter(|_| link.follower_open) else { continue };
                let (from, before) = (link.follower.machine, link.up_at);
                let at = self.network.arrival(from, primary.machine, now, delay).max(before);
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.up_at = at;
                }
                self.schedule.at(at, Happening::To(primary, ForProcess::Word(id, word)));
            }
        }
    }

    pub(crate) fn collect_messages(&mut self, place: Place) -> Result<(), String> {
        let own: Vec<u64> =
            self.network.links.iter().filter(|(_, link)| link.primary == Some(place)).map(|(id, _)| *id).collect();
        for id in own {
            loop {
                let delay = self.delay();
                let now = self.schedule.now;
                let Some(link) = self.network.links.get_mut(&id) else { break };
                let Some(messages) = link.messages.as_mut() else { break };
                match messages.try_recv() {
                    Ok(message) => {
                        let (follower, before) = (link.follower, link.down_at);
                        if let PrimaryMessage::Records(records) = &message
                            && records.frames.last().is_some_and(|frame| frame.position.epoch == records.epoch)
                            && let Some(process) = &self.machines[place.machine].process
                        {
                            self.witness.wrote(&process.identity, records.epoch)?;
                        }
                        let at = self.network.arrival(place.machine, follower.machine, now, delay).max(before);
                        if let Some(link) = self.network.links.get_mut(&id) {
                            link.down_at = at;
                        }
                        self.schedule.at(at, Happening::To(follower, ForProcess::Message(id, message)));
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.close_link(id, true, true);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn hear_word(&mut self, place: Place, id: u64, word: ToPrimary) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id) else { return Ok(()) };
        if link.primary != Some(place) || !link.primary_open {
            return Ok(());
        }
        let event = match word {
            ToPrimary::Hello(hello, _) => {
                let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
                link.messages = Some(messages);
                FollowerEvent::Hello(hello, sender)
            }
            ToPrimary::Acknowledge(ack, _) => FollowerEvent::Acknowledge(ack),
            ToPrimary::CaughtUp(floor) => FollowerEvent::CaughtUp(floor),
            ToPrimary::Leaving(reason, _) => FollowerEvent::Leaving(reason),
            ToPrimary::Fetch { epoch, sync_id, queue, from } => {
                return self.begin_fetch(place, Fetch { link: id, epoch, sync_id, queue, from });
            }
        };
        self.turn(place, |process| process.node.handle(Event::Follower(StreamId(id), event)))
    }

    pub(crate) fn hear_message(&mut self, place: Place, id: u64, message: PrimaryMessage) -> Result<(), String> {
        let Some(link) = self.network.links.get(&id).filter(|link| link.follower_open) else { return Ok(()) };
        let number = link.number;
        match &message {
            PrimaryMessage::Base(_) => self.counts.catch_ups += 1,
            PrimaryMessage::Welcome(welcome) => {
                self.counts.resumes += u64::from(matches!(welcome.resume, Resume::After(_)));
            }
            _ => {}
        }
        self.turn(place, |process| process.node.handle(Event::Upstream(number, UpstreamEvent::Message(message))))
    }

    pub(crate) fn begin_fetch(&mut self, place: Place, fetch: Fetch) -> Result<(), String> {
        let id = self.network.number();
        self.network.fetches.insert(id, fetch);
        self.ask_for_chunk(place, id)
    }

    pub(crate) fn ask_for_chunk(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(fetch) = self.network.fetches.get(&id) else { return Ok(()) };
        let Fetch { epoch, sync_id, queue, from, .. } = *fetch;
        let (reply, answer) = tokio::sync::oneshot::channel();
        let request = BacklogRequest { epoch, sync_id, queue, from };
        if let Some(process) = self.process_at(place) {
            process.replies.insert(id, answer);
        }
        self.turn(place, |process| {
            process.node.handle(Event::Follower(StreamId(0), FollowerEvent::Backlog { request, reply }));
        })
    }

    pub(crate) fn collect_replies(&mut self, place: Place) {
        let Some(process) = self.process_at(place) else { return };
        let mut there = Vec::new();
        process.replies.retain(|id, reply| match reply.try_recv() {
            Ok(answer) => {
                there.push((*id, answer));
                false
            }
            Err(tokio::sync::oneshot::error::TryRecvError::Empty) => true,
            Err(tokio::sync::oneshot::error::TryRecvError::Closed) => {
                there.push((*id, Err("the broker is ending".into())));
                false
            }
        });
        for (id, answer) in there {
            let (now, delay) = (self.schedule.now, self.delay());
            let Some(fetch) = self.network.fetches.get_mut(&id) else { continue };
            let Some(link) = self.network.links.get(&fetch.link) else { continue };
            let at = self.network.arrival(place.machine, link.follower.machine, now, delay);
            let (follower, link) = (link.follower, self.network.fetches[&id].link);
            let what = match answer {
                Ok(BacklogReply { as_of, frames, messages, bytes, next, done }) => {
                    let Some(fetch) = self.network.fetches.get_mut(&id) else { continue };
                    let from = std::mem::replace(&mut fetch.from, next);
                    let (sync_id, queue) = (fetch.sync_id, fetch.queue);
                    ForProcess::Backlog(
                        id,
                        Box::new(Backlog { sync_id, queue, as_of, frames, messages, bytes, from, next, done }),
                    )
                }
                Err(reason) => ForProcess::FetchFailed(link, reason),
            };
            self.schedule.at(at, Happening::To(follower, what));
        }
    }

    pub(crate) fn hear_backlog(&mut self, place: Place, id: u64, backlog: Backlog) -> Result<(), String> {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(fetch) = self.network.fetches.get(&id) else { return Ok(()) };
        let Some(link) = self.network.links.get(&fetch.link).filter(|link| link.follower_open) else { return Ok(()) };
        let (number, primary, done) = (link.number, link.primary, backlog.done);
        if done {
            self.network.fetches.remove(&id);
        } else if let Some(primary) = primary {
            let at = self.network.arrival(place.machine, primary.machine, now, delay);
            self.schedule.at(at, Happening::To(primary, ForProcess::FetchNext(id)));
        }
        let (taken, _) = tokio::sync::oneshot::channel();
        self.turn(place, |process| {
            process.node.handle(Event::Upstream(number, UpstreamEvent::Backlog(backlog, taken)));
        })
    }
}
