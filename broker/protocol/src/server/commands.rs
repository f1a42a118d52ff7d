//! What the caller tells a connection to do, once it is open. On a channel that is not open, or whose `channel.open` the
//! caller has yet to answer, commands do nothing: they speak of an earlier channel of that number.

use std::time::Duration;

use super::channels::State;
use super::{Phase, ServerConnection};
use crate::content::{ContentHead, DeliverRef, GetOkRef, ReturnRef};
use crate::ids::{ChannelId, DeliveryTag, MethodId};
use crate::method::{Method, basic, channel, connection};
use crate::output::HeaderTooLarge;
use crate::reply::{ReplyCode, short_str_cut};
use understudy_record::Body;

impl ServerConnection {
    /// Answers [`super::Event::ChannelOpen`].
    pub fn open_channel(&mut self, channel: ChannelId) {
        let Some(slot) = self.channels.get_mut(usize::from(channel.0)) else { return };
        let Some(left) = slot.unanswered.checked_sub(1) else { return };
        slot.unanswered = left;
        if left == 0 && matches!(slot.state, State::Open(_)) {
            self.output.push_method(channel, &channel::OpenOk {}.into());
        }
    }

    /// Answers [`super::Event::ChannelClose`]: nothing more will be sent on this channel.
    pub fn channel_closed(&mut self, channel: ChannelId) {
        let Some(slot) = self.channels.get_mut(usize::from(channel.0)) else { return };
        if matches!(slot.state, State::PeerClosing) {
            slot.state = State::Free;
            self.output.push_method(channel, &channel::CloseOk {}.into());
        }
    }

    /// Any method without content. On channel 0 only `connection.update-secret-ok`.
    pub fn send_method(&mut self, channel: ChannelId, method: &Method) {
        if self.may_send(channel) || (channel == ChannelId::CONNECTION && self.phase == Phase::Open) {
            self.output.push_method(channel, method);
        }
    }

    /// # Errors
    /// If the properties do not fit this client's frames: nothing is sent, and the message stays the caller's.
    pub fn send_deliver(&mut self, channel: ChannelId, message: &DeliverRef<'_>) -> Result<(), HeaderTooLarge> {
        self.send_content(channel, message, message.properties, message.body)
    }

    /// # Errors
    /// As [`Self::send_deliver`].
    pub fn send_return(&mut self, channel: ChannelId, message: &ReturnRef<'_>) -> Result<(), HeaderTooLarge> {
        self.send_content(channel, message, message.properties, message.body)
    }

    /// # Errors
    /// As [`Self::send_deliver`].
    pub fn send_get_ok(&mut self, channel: ChannelId, message: &GetOkRef<'_>) -> Result<(), HeaderTooLarge> {
        self.send_content(channel, message, message.properties, message.body)
    }

    /// Confirms publishes: the one with this tag or, with `multiple`, all up to it.
    pub fn send_ack(&mut self, channel: ChannelId, delivery_tag: DeliveryTag, multiple: bool) {
        if self.may_send(channel) {
            self.output.push_method(channel, &basic::Ack { delivery_tag, multiple }.into());
        }
    }

    /// Says that publishes were not taken.
    pub fn send_nack(&mut self, channel: ChannelId, delivery_tag: DeliveryTag, multiple: bool) {
        if self.may_send(channel) {
            self.output.push_method(channel, &basic::Nack { delivery_tag, multiple, requeue: false }.into());
        }
    }

    /// Closes the channel for a mistake of the peer's; `text` without the code's name, `cause` the method that made it. If
    /// the peer is closing it as well, that is answered instead.
    pub fn close_channel(&mut self, channel: ChannelId, code: ReplyCode, text: &str, cause: MethodId) {
        if self.may_send(channel) {
            self.close_channel_unasked(channel, code, text, cause);
        } else {
            self.channel_closed(channel);
        }
    }

    /// Closes the connection; `text` without the code's name.
    pub fn close_connection(&mut self, now: Duration, code: ReplyCode, text: &str, cause: MethodId) {
        self.fail(now, super::Fault::new(code, cause, text), false);
    }

    /// Answers [`super::End::ByPeer`]: everything the connection had is freed.
    pub fn connection_closed(&mut self) {
        if self.phase == Phase::PeerClosing {
            self.output.push_method(ChannelId::CONNECTION, &connection::CloseOk {}.into());
            self.phase = Phase::Closed;
        }
    }

    /// Tells the client that its publishes will not be read for now, if it wants to be told.
    pub fn block(&mut self, reason: &str) {
        if self.phase == Phase::Open && !self.blocked && self.client_capability("connection.blocked") {
            self.blocked = true;
            let blocked = connection::Blocked { reason: short_str_cut(reason) };
            self.output.push_method(ChannelId::CONNECTION, &blocked.into());
        }
    }

    /// Takes back [`Self::block`].
    pub fn unblock(&mut self) {
        if self.phase == Phase::Open && self.blocked {
            self.blocked = false;
            self.output.push_method(ChannelId::CONNECTION, &connection::Unblocked {}.into());
        }
    }

    #[inline]
    fn send_content(
        &mut self,
        channel: ChannelId,
        head: &impl ContentHead,
        properties: &[u8],
        body: &Body,
    ) -> Result<(), HeaderTooLarge> {
        if !self.may_send(channel) {
            return Ok(());
        }
        let frame_max = if self.frame_max == 0 { u32::MAX } else { self.frame_max };
        self.output.push_content(channel, frame_max, head, properties, body)
    }

    #[inline]
    fn may_send(&self, channel: ChannelId) -> bool {
        let slot = self.channels.get(usize::from(channel.0));
        slot.is_some_and(|slot| slot.unanswered == 0 && matches!(slot.state, State::Open(_)))
    }
}
