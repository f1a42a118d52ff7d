//! What the caller tells a connection to do, once it is open. On a channel that is not open, or whose `channel.open` the
//! caller has yet to answer, commands do nothing: they speak of an earlier channel of that number.

use std::time::Duration;

use super::channels::{Sending, State};
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
            self.say(channel, &channel::OpenOk {}.into());
        }
    }

    /// Answers [`super::Event::ChannelClose`]: nothing more will be sent on this channel.
    pub fn channel_closed(&mut self, channel: ChannelId) {
        let Some(slot) = self.channels.get_mut(usize::from(channel.0)) else { return };
        if matches!(slot.state, State::PeerClosing) {
            slot.state = State::Free;
            self.say(channel, &channel::CloseOk {}.into());
        }
    }

    /// Any method without content. On channel 0 only `connection.update-secret-ok`.
    pub fn send_method(&mut self, channel: ChannelId, method: &Method) {
        if self.may_send(channel) || (channel == ChannelId::CONNECTION && self.phase == Phase::Open) {
            self.say(channel, method);
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

    /// Begins a delivery whose body of `size` octets follows by [`Self::send_body`]; `message.body` is not looked at. What
    /// is said on the channel before the body is complete goes out after it, and no other content may be begun on it.
    /// `false`: the channel is not open, and there is nothing to follow.
    ///
    /// # Errors
    /// As [`Self::send_deliver`].
    pub fn begin_deliver(
        &mut self,
        channel: ChannelId,
        message: &DeliverRef<'_>,
        size: u64,
    ) -> Result<bool, HeaderTooLarge> {
        self.begin_content(channel, message, message.properties, size)
    }

    /// Begins a return, as [`Self::begin_deliver`] does a delivery.
    ///
    /// # Errors
    /// As [`Self::send_deliver`].
    pub fn begin_return(
        &mut self,
        channel: ChannelId,
        message: &ReturnRef<'_>,
        size: u64,
    ) -> Result<bool, HeaderTooLarge> {
        self.begin_content(channel, message, message.properties, size)
    }

    /// Begins the answer to a get, as [`Self::begin_deliver`] does a delivery.
    ///
    /// # Errors
    /// As [`Self::send_deliver`].
    pub fn begin_get_ok(
        &mut self,
        channel: ChannelId,
        message: &GetOkRef<'_>,
        size: u64,
    ) -> Result<bool, HeaderTooLarge> {
        self.begin_content(channel, message, message.properties, size)
    }

    /// The next piece of the body that was begun on this channel. It goes out even if the channel is being closed, since a
    /// client that got its header awaits all of it; nothing happens once the connection is.
    ///
    /// # Panics
    /// If it is more than was announced.
    pub fn send_body(&mut self, channel: ChannelId, body: &Body) {
        let frame_max = self.sent_frame_max();
        let Some(slot) = self.channels.get_mut(usize::from(channel.0)) else { return };
        let Some(sending) = &mut slot.sending else { return };
        let (left, given) = (sending.left, body.len() as u64);
        assert!(given <= left, "{given} octets of a body of which {left} were left");
        sending.left -= given;
        let deferred = if left == given { slot.sending.take().map(|sending| sending.deferred) } else { None };
        self.output.push_body(channel, frame_max, body);
        deferred.into_iter().flatten().for_each(|method| self.output.push_method(channel, &method));
    }

    /// Confirms publishes: the one with this tag or, with `multiple`, all up to it.
    pub fn send_ack(&mut self, channel: ChannelId, delivery_tag: DeliveryTag, multiple: bool) {
        if self.may_send(channel) {
            self.say(channel, &basic::Ack { delivery_tag, multiple }.into());
        }
    }

    /// Says that publishes were not taken.
    pub fn send_nack(&mut self, channel: ChannelId, delivery_tag: DeliveryTag, multiple: bool) {
        if self.may_send(channel) {
            self.say(channel, &basic::Nack { delivery_tag, multiple, requeue: false }.into());
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
        self.assert_not_sending(channel);
        let frame_max = self.sent_frame_max();
        self.output.push_content(channel, frame_max, head, properties, body)
    }

    fn begin_content(
        &mut self,
        channel: ChannelId,
        head: &impl ContentHead,
        properties: &[u8],
        size: u64,
    ) -> Result<bool, HeaderTooLarge> {
        if !self.may_send(channel) {
            return Ok(false);
        }
        self.assert_not_sending(channel);
        let frame_max = self.sent_frame_max();
        self.output.push_content_head(channel, frame_max, head, properties, size)?;
        let slot = self.channels.get_mut(usize::from(channel.0)).filter(|_| size > 0);
        let Some(slot) = slot else { return Ok(false) };
        slot.sending = Some(Box::new(Sending { left: size, deferred: Vec::new() }));
        Ok(true)
    }

    fn assert_not_sending(&self, channel: ChannelId) {
        let left = self.channels.get(usize::from(channel.0)).and_then(|slot| Some(slot.sending.as_ref()?.left));
        debug_assert_eq!(left, None, "octets left of a content on channel {channel}, and another begun");
    }

    fn sent_frame_max(&self) -> u32 {
        if self.frame_max == 0 { u32::MAX } else { self.frame_max }
    }

    #[inline]
    fn may_send(&self, channel: ChannelId) -> bool {
        let slot = self.channels.get(usize::from(channel.0));
        slot.is_some_and(|slot| slot.unanswered == 0 && matches!(slot.state, State::Open(_)))
    }
}
