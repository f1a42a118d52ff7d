//! The life of channels and the order of frames on them.

use bytes::Bytes;

use super::{Event, Fault, ServerConnection};
use crate::content::{Assembly, BodyLimits, ContentError, Publish, read_header};
use crate::frame::{Frame, FrameKind, frame_at};
use crate::ids::{ChannelId, MethodId};
use crate::method::{self, Method, Sender, access, basic, channel};
use crate::reply::ReplyCode;
use crate::wire::{DecodeError, Reader};

/// One channel number.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) state: State,
    /// `channel.open`s that the caller has not answered yet. While there are any, commands still speak of an earlier
    /// channel of the same number, and are dropped.
    pub(super) unanswered: u32,
    /// A content whose body is still being sent.
    pub(super) sending: Option<Box<Sending>>,
}

/// A content on its way out, of which the caller gives the body piece by piece. Nothing else may stand between.
#[derive(Debug)]
pub(super) struct Sending {
    /// Octets of body still to come, at least 1.
    pub(super) left: u64,
    /// What was to be said meanwhile, to be said after it. Each answers something that the peer sent.
    pub(super) deferred: Vec<Method>,
}

#[derive(Debug, Default)]
pub(super) enum State {
    #[default]
    Free,
    Open(Assembly<basic::Publish>),
    /// The peer sent `channel.close`: waits for the caller to have freed its state.
    PeerClosing,
    /// We sent `channel.close`: everything is dropped until the peer's close-ok. `peer_closed`: its own close crossed ours.
    Closing {
        peer_closed: bool,
    },
}

impl Channel {
    pub(super) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Open(assembly) => assembly.held_bytes(),
            _ => 0,
        }
    }

    pub(super) fn is_amid_body(&self) -> bool {
        matches!(&self.state, State::Open(assembly) if assembly.is_amid_body())
    }
}

impl ServerConnection {
    /// A method, header or body frame of a channel other than 0. `next` is where the following frame starts; a message
    /// whose frames are all there is taken at once, and `next` moved behind it.
    #[inline]
    pub(super) fn handle_channel_frame(&mut self, bytes: &Bytes, frame: Frame, next: &mut usize) -> Result<(), Fault> {
        match self.channels.get_mut(usize::from(frame.channel.0)).map(|channel| &mut channel.state) {
            Some(State::Open(assembly)) => {
                if frame.kind == FrameKind::Method && assembly.is_idle() {
                    return self.handle_channel_method(bytes, frame, next);
                }
                // No method began this content, so none is to blame.
                let cause = if assembly.is_idle() { MethodId::NONE } else { basic::Publish::ID };
                let limits = BodyLimits {
                    max: self.config.max_message_bytes,
                    whole: self.config.whole_body_bytes,
                    part: self.config.part_bytes,
                };
                let mut parts = Vec::new();
                let taken = assembly.take(bytes, frame, &limits, &mut parts);
                self.events.extend(parts.into_iter().map(|part| Event::PublishPart(frame.channel, part)));
                match taken {
                    Ok(None) => {}
                    Ok(Some(content)) => {
                        self.events.push_back(Event::Publish(frame.channel, Publish::from_content(content)));
                    }
                    Err(error) => return self.handle_content_error(frame.channel, &error, cause),
                }
                Ok(())
            }
            Some(State::Closing { .. }) => self.handle_frame_of_closing(bytes, frame),
            Some(State::PeerClosing) => {
                let text = format!("frame on channel {} after channel.close", frame.channel);
                Err(Fault::new(ReplyCode::ChannelError, MethodId::NONE, text))
            }
            Some(State::Free) | None => self.handle_frame_of_free(bytes, frame),
        }
    }

    fn handle_channel_method(&mut self, bytes: &Bytes, frame: Frame, next: &mut usize) -> Result<(), Fault> {
        let mut reader = Reader::part(bytes, frame.start, frame.end);
        let id = method::read_id(&mut reader).map_err(|error| malformed(MethodId::NONE, &error))?;
        if id == basic::Publish::ID {
            let head = basic::Publish::read(&mut reader).map_err(|error| malformed(id, &error))?;
            return self.handle_publish(bytes, frame.channel, head, next);
        }
        let method = Method::read_arguments(id, &mut reader).map_err(|error| malformed(id, &error))?;
        if method.sender() == Sender::Server {
            return Err(Fault::new(ReplyCode::CommandInvalid, id, format!("{} from a client", method.name())));
        }
        match method {
            Method::ChannelOpen(_) => Err(Fault::new(ReplyCode::ChannelError, id, "second 'channel.open' seen")),
            Method::ChannelClose(_) => {
                self.set_state(frame.channel, State::PeerClosing);
                self.events.push_back(Event::ChannelClose(frame.channel));
                Ok(())
            }
            Method::ChannelCloseOk(_) | Method::ChannelFlowOk(_) => Ok(()),
            Method::ChannelFlow(channel::Flow { active: true }) => {
                self.say(frame.channel, &channel::FlowOk { active: true }.into());
                Ok(())
            }
            Method::ChannelFlow(channel::Flow { active: false }) => {
                Err(Fault::new(ReplyCode::NotImplemented, id, "active=false"))
            }
            Method::AccessRequest(_) => {
                self.say(frame.channel, &access::RequestOk { ticket: 1 }.into());
                Ok(())
            }
            method if id.class == 10 => {
                let text = format!("{} on channel {}", method.name(), frame.channel);
                Err(Fault::new(ReplyCode::CommandInvalid, id, text))
            }
            method => {
                self.events.push_back(Event::Method(frame.channel, method));
                Ok(())
            }
        }
    }

    /// The hot path: most messages come as three frames in a row, in one read.
    #[inline]
    fn handle_publish(
        &mut self,
        bytes: &Bytes,
        channel: ChannelId,
        head: basic::Publish,
        next: &mut usize,
    ) -> Result<(), Fault> {
        let of_channel = |at, kind| frame_at(bytes, at).filter(|frame| frame.channel == channel && frame.kind == kind);
        let Some(header) = of_channel(*next, FrameKind::Header) else {
            self.set_state(channel, State::Open(Assembly::Header(head)));
            return Ok(());
        };
        let whole = of_channel(header.end + 1, FrameKind::Body);
        let (size, properties) = match read_header(bytes, header, self.config.max_message_bytes) {
            Ok(read) => read,
            Err(error) => {
                *next = header.end + 1;
                return self.handle_content_error(channel, &error, basic::Publish::ID);
            }
        };
        let body = match whole {
            _ if size == 0 => {
                *next = header.end + 1;
                Bytes::new()
            }
            Some(body) if (body.end - body.start) as u64 == size && size <= self.config.whole_body_bytes => {
                *next = body.end + 1;
                bytes.slice(body.start..body.end)
            }
            _ => {
                self.set_state(channel, State::Open(Assembly::Header(head)));
                return Ok(());
            }
        };
        let publish = Publish::from_content((head, properties, body.into()));
        self.events.push_back(Event::Publish(channel, publish));
        Ok(())
    }

    /// Too large a message costs the channel, everything else the connection.
    fn handle_content_error(&mut self, channel: ChannelId, error: &ContentError, cause: MethodId) -> Result<(), Fault> {
        let (code, text) = (error.reply_code(), error.to_string());
        if code.is_hard() {
            return Err(Fault::new(code, cause, text));
        }
        self.close_channel_unasked(channel, code, &text, cause);
        self.events.push_back(Event::ChannelFailed { channel, code, text });
        Ok(())
    }

    fn handle_frame_of_free(&mut self, bytes: &Bytes, frame: Frame) -> Result<(), Fault> {
        let number = frame.channel;
        if self.channel_max != 0 && number.0 > self.channel_max {
            let text = format!("channel number {number} is above the negotiated channel_max ({})", self.channel_max);
            return Err(Fault::new(ReplyCode::NotAllowed, MethodId::NONE, text));
        }
        if frame.kind != FrameKind::Method {
            let text = format!("content frame on channel {number}, which is not open");
            return Err(Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, text));
        }
        let mut reader = Reader::part(bytes, frame.start, frame.end);
        let id = method::read_id(&mut reader).map_err(|error| malformed(MethodId::NONE, &error))?;
        match Method::read_arguments(id, &mut reader).map_err(|error| malformed(id, &error))? {
            Method::ChannelOpen(_) => {
                self.begin_channel(number);
                Ok(())
            }
            _ => Err(Fault::new(ReplyCode::ChannelError, id, "expected 'channel.open'")),
        }
    }

    fn handle_frame_of_closing(&mut self, bytes: &Bytes, frame: Frame) -> Result<(), Fault> {
        let number = frame.channel;
        if frame.kind != FrameKind::Method {
            return Ok(());
        }
        let State::Closing { peer_closed } = self.state(number) else { return Ok(()) };
        match method::read_id(&mut Reader::part(bytes, frame.start, frame.end)) {
            Ok(channel::CloseOk::ID) => self.set_state(number, State::Free),
            Ok(channel::Close::ID) => {
                *peer_closed = true;
                self.say(number, &channel::CloseOk {}.into());
            }
            // Having closed it too, the client owes us a close-ok, but some never send it.
            Ok(channel::Open::ID) if *peer_closed => self.begin_channel(number),
            _ => {}
        }
        Ok(())
    }

    fn begin_channel(&mut self, number: ChannelId) {
        let place = usize::from(number.0);
        if self.channels.len() <= place {
            self.channels.resize_with(place + 1, Channel::default);
        }
        if let Some(channel) = self.channels.get_mut(place) {
            channel.state = State::Open(Assembly::Idle);
            channel.unanswered += 1;
        }
        self.events.push_back(Event::ChannelOpen(number));
    }

    pub(super) fn close_channel_unasked(&mut self, channel: ChannelId, code: ReplyCode, text: &str, cause: MethodId) {
        let close = channel::Close {
            reply_code: code.number(),
            reply_text: code.text(text),
            class_id: cause.class,
            method_id: cause.method,
        };
        self.say(channel, &close.into());
        self.set_state(channel, State::Closing { peer_closed: false });
    }

    /// Says something on a channel: at once, or after the content that is being sent on it.
    #[inline]
    pub(super) fn say(&mut self, channel: ChannelId, method: &Method) {
        match self.channels.get_mut(usize::from(channel.0)).and_then(|channel| channel.sending.as_mut()) {
            Some(sending) => sending.deferred.push(method.clone()),
            None => self.output.push_method(channel, method),
        }
    }

    fn state(&mut self, channel: ChannelId) -> &mut State {
        let place = usize::from(channel.0);
        &mut self.channels.get_mut(place).expect("a channel whose state was just seen").state
    }

    pub(super) fn set_state(&mut self, channel: ChannelId, state: State) {
        if let Some(channel) = self.channels.get_mut(usize::from(channel.0)) {
            channel.state = state;
        }
    }
}

fn malformed(cause: MethodId, error: &DecodeError) -> Fault {
    Fault::new(error.reply_code(), cause, error.to_string())
}
