//! Clients' connections as the core thread knows them: their way in and their way out.

use std::sync::atomic::Ordering;

use understudy_core::{Command, ConnectionId, Effect, EffectKind};

use understudy_record::Index;

use crate::{ClientEvent, Node, Outbox, Outgoing, Role};

/// Bytes waiting for one client's socket above which it gets no more deliveries, until it has read most of them. A client
/// that stops reading costs this much, and no other client anything.
const CONGESTED_BYTES: usize = 2 << 20;

/// What an effect costs beside its body: its frames and its place in the queue.
const EFFECT_BYTES: usize = 128;

pub(crate) struct Client {
    outbox: Outbox,
    waiting: Vec<Effect>,
}

impl Node {
    pub fn handle_client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Opened { id, info, outbox, answer } => match &self.role {
                Role::Primary(role) if !role.isolated => {
                    let opened = self.core.connection_opened(id, info);
                    if opened.is_ok() {
                        self.clients.insert(id, Client { outbox, waiting: Vec::new() });
                    }
                    _ = answer.send(opened); // who asked may have gone: its end comes as an event of its own
                }
                _ => _ = outbox.sender.send(Outgoing::Force(format!("{} is not the primary", self.me.name))),
            },
            ClientEvent::Commands { id, commands } => self.take_commands(id, commands),
            ClientEvent::ChannelFailed { id, channel } => {
                if self.clients.contains_key(&id) {
                    self.core.handle(id, channel, Command::ChannelClose, &mut self.out);
                }
            }
            ClientEvent::Unreadable { id, reason } => {
                // Of a client that was closed meanwhile: the log may be another by now.
                if self.clients.contains_key(&id) {
                    self.end_role_damaged(reason);
                }
            }
            ClientEvent::Writable { id } => {
                if self.clients.contains_key(&id) {
                    self.core.handle_writable(id, true, &mut self.out);
                }
            }
            ClientEvent::Closed { id } => {
                if self.clients.remove(&id).is_some() {
                    self.core.connection_closed(id, &mut self.out);
                }
            }
        }
    }

    fn take_commands(&mut self, id: ConnectionId, commands: Vec<(understudy_core::ChannelId, Command)>) {
        if !self.clients.contains_key(&id) {
            return; // closed by the broker; what crossed is dropped
        }
        for (channel, command) in commands {
            let answer = match &command {
                Command::ChannelOpen => Some(Outgoing::ChannelOpenOk(channel)),
                Command::ChannelClose => Some(Outgoing::ChannelCloseOk(channel)),
                _ => None,
            };
            let part_bytes = if let Command::PublishPart { body } = &command { body.len() } else { 0 };
            self.core.handle(id, channel, command, &mut self.out);
            if part_bytes > 0 {
                self.note_part(id, part_bytes);
            }
            let is_refused = matches!(answer, Some(Outgoing::ChannelOpenOk(_))) && !self.core.has_channel(id, channel);
            if let Some(answer) = answer.filter(|_| !is_refused) {
                self.dispatch_effects(); // whatever the channel's number meant before goes out first
                if let Some(client) = self.clients.get(&id) {
                    _ = client.outbox.sender.send(answer);
                }
            }
        }
    }

    /// A part was written, or ignored since its channel is being closed; its connection gets to know when it no longer is in
    /// memory for its own sake.
    fn note_part(&mut self, id: ConnectionId, bytes: usize) {
        let index = self.core.last_index();
        self.uploads.push_back((index, id, bytes));
        if let Role::Primary(role) = &self.role {
            self.release_uploads(role.primary.committed());
        }
    }

    /// Parts up to `committed` are everywhere they have to be.
    pub(crate) fn release_uploads(&mut self, committed: Index) {
        while let Some((_, id, bytes)) = self.uploads.pop_front_if(|(index, ..)| *index <= committed) {
            if let Some(client) = self.clients.get(&id) {
                client.outbox.upload.remove(bytes);
            }
        }
    }

    /// Hands each connection what is for it, in order.
    pub(crate) fn dispatch_effects(&mut self) {
        if self.out.effects.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        for effect in self.out.effects.drain(..) {
            let Some(client) = self.clients.get_mut(&effect.connection) else { continue };
            if client.waiting.is_empty() {
                touched.push(effect.connection);
            }
            client.waiting.push(effect);
        }
        for id in touched {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let bytes: usize = client.waiting.iter().map(cost).sum();
            let before = client.outbox.pending_bytes.fetch_add(bytes, Ordering::AcqRel);
            // Said before they are handed over: a task that has written them all by then would find nothing to report.
            let congests = before + bytes > CONGESTED_BYTES && !client.outbox.congested.swap(true, Ordering::AcqRel);
            _ = client.outbox.sender.send(Outgoing::Effects(std::mem::take(&mut client.waiting)));
            if congests {
                self.core.handle_writable(id, false, &mut self.out);
            }
        }
    }

    /// Every client is told why and closed, and the core forgets them too: it stays, and must not go on serving them.
    pub(crate) fn end_clients(&mut self, reason: &str) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        self.close_clients(reason);
        for id in ids {
            self.core.connection_closed(id, &mut self.out);
        }
    }

    /// Every client is told why and closed; nothing they had asked for is answered any more.
    pub(crate) fn close_clients(&mut self, reason: &str) {
        for client in std::mem::take(&mut self.clients).into_values() {
            _ = client.outbox.sender.send(Outgoing::Force(reason.to_owned()));
        }
    }
}

/// What an effect holds in memory until it is on the socket, in bytes.
pub fn cost(effect: &Effect) -> usize {
    match &effect.kind {
        EffectKind::BasicDeliver { message, .. }
        | EffectKind::BasicGetOk { message, .. }
        | EffectKind::BasicReturn { message, .. } => EFFECT_BYTES + message.properties.len() + message.body.len(),
        _ => EFFECT_BYTES,
    }
}
