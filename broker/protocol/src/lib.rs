//! AMQP 0-9-1 without sockets and clocks: octets become frames, frames become methods and messages, and back; both sides'
//! rules of connections and channels. Whoever owns the socket moves octets in and out and says what time it is.
//!
//! It does not contain: queues, exchanges, users (those are `core` and the shell's), TLS, any I/O, any timer. `now` is
//! always a [`std::time::Duration`] since an origin of the caller's choice.
//!
//! Where to start: [`ServerConnection`] is the broker's side, [`ClientConnection`] a client's. [`Method`] lists all methods.
//! A publish comes in and a delivery goes out as reference-counted slices: [`Publish`], [`DeliverRef`], [`Output`].

mod client;
mod content;
mod frame;
mod heartbeat;
mod ids;
mod method;
mod output;
mod properties;
mod reply;
pub mod sasl;
mod server;
mod table;
mod wire;

pub use client::{ClientConfig, ClientConnection, ClientEnd, ClientEvent};
pub use content::{DeliverRef, Delivery, GetOkRef, GotMessage, Publish, PublishRef, Return, ReturnRef};
pub use frame::{FRAME_MIN_SIZE, FRAME_OVERHEAD_BYTES, FrameError, PROTOCOL_HEADER};
pub use ids::{ChannelId, DeliveryTag, MethodId};
pub use method::{Method, access, basic, channel, confirm, connection, exchange, queue, tx};
pub use output::{HeaderTooLarge, Output};
pub use properties::{BasicProperties, Properties};
pub use reply::ReplyCode;
pub use server::{End, Event, ServerConfig, ServerConnection};
pub use table::{FieldTable, FieldValue, MAX_TABLE_DEPTH};
pub use wire::DecodeError;
