//! From the protocol header to `connection.open-ok`, and the other methods of channel 0.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use super::{End, Event, Fault, Phase, REFUSAL_DELAY, ServerConnection};
use crate::frame::{FRAME_MIN_SIZE, Frame, FrameKind, PROTOCOL_HEADER};
use crate::ids::{ChannelId, MethodId};
use crate::method::{self, Method, connection};
use crate::reply::ReplyCode;
use crate::wire::Reader;

/// The class of `connection.start` and its kin.
const CONNECTION_CLASS: u16 = connection::Start::ID.class;

impl ServerConnection {
    /// Whether there was a whole one and it was right. A wrong one is answered with the right one (AMQP 4.2.2), as soon as
    /// its first wrong octet is there.
    pub(super) fn take_protocol_header(&mut self, buffer: &mut BytesMut) -> bool {
        let length = buffer.len().min(PROTOCOL_HEADER.len());
        if buffer[..length] != PROTOCOL_HEADER[..length] {
            self.output.push_raw(&PROTOCOL_HEADER);
            buffer.clear();
            self.finish(End::ProtocolHeader);
            return false;
        }
        if length < PROTOCOL_HEADER.len() {
            return false;
        }
        buffer.advance(length);
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: self.config.server_properties.clone(),
            mechanisms: self.config.mechanisms.join(" ").into(),
            locales: Bytes::from_static(b"en_US"),
        };
        self.output.push_method(ChannelId::CONNECTION, &start.into());
        self.phase = Phase::Start;
        true
    }

    /// Any frame of channel 0, and any of another channel that comes too early or is no part of it.
    pub(super) fn handle_connection_frame(&mut self, now: Duration, bytes: &Bytes, frame: Frame) -> Result<(), Fault> {
        let mut reader = Reader::part(bytes, frame.start, frame.end);
        match frame.kind {
            FrameKind::Heartbeat if frame.channel != ChannelId::CONNECTION => {
                let text = format!("heartbeat on channel {}", frame.channel);
                Err(Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, text))
            }
            FrameKind::Heartbeat if reader.remaining() > 0 => {
                Err(Fault::new(ReplyCode::FrameError, MethodId::NONE, "heartbeat with a payload"))
            }
            FrameKind::Heartbeat => Ok(()),
            FrameKind::Header | FrameKind::Body => {
                let text = format!("content frame on channel {} without a publish", frame.channel);
                Err(Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, text))
            }
            FrameKind::Method => {
                let malformed =
                    |cause| move |error: crate::DecodeError| Fault::new(error.reply_code(), cause, error.to_string());
                let id = method::read_id(&mut reader).map_err(malformed(MethodId::NONE))?;
                if frame.channel != ChannelId::CONNECTION {
                    let text = format!("method {id} on channel {} before connection.open-ok", frame.channel);
                    return Err(Fault::new(ReplyCode::ChannelError, id, text));
                }
                let method = Method::read_arguments(id, &mut reader).map_err(malformed(id))?;
                self.handle_connection_method(now, method)
            }
        }
    }

    fn handle_connection_method(&mut self, now: Duration, method: Method) -> Result<(), Fault> {
        match (self.phase, method) {
            (Phase::Start, Method::ConnectionStartOk(start_ok)) => {
                let connection::StartOk { client_properties, mechanism, response, locale } = start_ok;
                let client_properties = client_properties.detached();
                self.client_properties = client_properties.clone();
                self.phase = Phase::Authenticating;
                self.events.push_back(Event::Authenticate { mechanism, response, client_properties, locale });
                Ok(())
            }
            (Phase::Tune, Method::ConnectionTuneOk(tune_ok)) => self.tune(now, &tune_ok),
            (Phase::AwaitingOpen, Method::ConnectionOpen(open)) => {
                self.phase = Phase::Opening;
                self.events.push_back(Event::Open { virtual_host: open.virtual_host });
                Ok(())
            }
            (Phase::Open, Method::ConnectionUpdateSecret(update)) => {
                self.events.push_back(Event::UpdateSecret { secret: update.new_secret, reason: update.reason });
                Ok(())
            }
            (Phase::Tune | Phase::AwaitingOpen | Phase::Open, Method::ConnectionClose(close)) => {
                self.phase = Phase::PeerClosing;
                self.end(End::ByPeer { code: close.reply_code, text: close.reply_text });
                Ok(())
            }
            (_, method) => {
                let (id, name) = (method.id(), method.name());
                let text = if id.class == CONNECTION_CLASS {
                    format!("unexpected {name} in this state of the connection")
                } else {
                    format!("{name} on channel 0")
                };
                Err(Fault::new(ReplyCode::CommandInvalid, id, text))
            }
        }
    }

    /// The client may ask for less than we offered, never for more, nor for "no limit" where we have one. The heartbeat is
    /// the client's to choose (RabbitMQ; the specification lets the lower value win).
    fn tune(&mut self, now: Duration, tune_ok: &connection::TuneOk) -> Result<(), Fault> {
        let refused = |text| Err(Fault::new(ReplyCode::NotAllowed, connection::TuneOk::ID, text));
        let check = |name, value: u32, min: u32, max: u32| {
            if value != 0 && value < min {
                Some(format!("negotiated {name} = {value} is lower than the minimum allowed value ({min})"))
            } else if max != 0 && (value == 0 || value > max) {
                Some(format!("negotiated {name} = {value} is higher than the maximum allowed value ({max})"))
            } else {
                None
            }
        };
        if let Some(text) = check("channel_max", tune_ok.channel_max.into(), 1, self.config.channel_max.into()) {
            return refused(text);
        }
        if let Some(text) = check("frame_max", tune_ok.frame_max, FRAME_MIN_SIZE, self.config.frame_max) {
            return refused(text);
        }
        self.channel_max = tune_ok.channel_max;
        self.frame_max = tune_ok.frame_max;
        self.heartbeat_seconds = tune_ok.heartbeat;
        self.heartbeat.start(now, tune_ok.heartbeat);
        self.phase = Phase::AwaitingOpen;
        Ok(())
    }

    /// Answers [`Event::Authenticate`].
    pub fn accept_authentication(&mut self, now: Duration) {
        if self.phase != Phase::Authenticating {
            return;
        }
        let tune = connection::Tune {
            channel_max: self.config.channel_max,
            frame_max: self.config.frame_max,
            heartbeat: self.config.heartbeat_seconds,
        };
        self.output.push_method(ChannelId::CONNECTION, &tune.into());
        self.phase = Phase::Tune;
        self.resume(now);
    }

    /// Answers [`Event::Authenticate`]. A client that does not expect a close frame at this point sees its socket dropped,
    /// after a moment (RabbitMQ's `authentication_failure_close`).
    pub fn refuse_authentication(&mut self, now: Duration, text: &str) {
        if self.phase != Phase::Authenticating {
            return;
        }
        let expects_close = self.client_capability("authentication_failure_close");
        self.end(End::AuthenticationRefused);
        if expects_close {
            self.start_closing(now, ReplyCode::AccessRefused, text, MethodId::NONE, false);
        } else {
            self.phase = Phase::Dropping { deadline: now + REFUSAL_DELAY };
        }
    }

    /// Answers [`Event::Open`]: the virtual host exists and may be used.
    pub fn open_connection(&mut self, now: Duration) {
        if self.phase != Phase::Opening {
            return;
        }
        self.output.push_method(ChannelId::CONNECTION, &connection::OpenOk {}.into());
        self.phase = Phase::Open;
        self.resume(now);
    }
}
