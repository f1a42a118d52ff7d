//! The numbers of the wire, each a type of its own.

use std::fmt;

/// A channel's number on its connection; 0 is the connection itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u16);

impl ChannelId {
    pub const CONNECTION: Self = Self(0);
}

/// Counts deliveries, or publishes in confirm mode, on one channel, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryTag(pub u64);

/// Which method: its class's number and its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodId {
    pub class: u16,
    pub method: u16,
}

impl MethodId {
    /// For errors that no method caused.
    pub const NONE: Self = Self { class: 0, method: 0 };

    pub const fn new(class: u16, method: u16) -> Self {
        Self { class, method }
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for DeliveryTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.class, self.method)
    }
}
