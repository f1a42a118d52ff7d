//! Numbers for metrics, status and flow control.

use understudy_record::{QueueId, ShortStr};

use crate::core::Core;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub queues: usize,
    pub exchanges: usize,
    pub messages_ready: usize,
    pub messages_unacked: usize,
    /// Bodies and properties, each message once, in memory or not.
    pub message_bytes: u64,
    /// Of those in memory.
    pub resident_bytes: u64,
    pub connections: usize,
    pub channels: usize,
    pub consumers: usize,
    /// Publishes that wait for their confirm.
    pub unconfirmed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStats {
    pub id: QueueId,
    pub name: ShortStr,
    pub vhost: ShortStr,
    pub durable: bool,
    pub ready: usize,
    pub unacked: usize,
    /// Bodies and properties, whether or not other queues hold them too.
    pub message_bytes: u64,
    pub consumers: usize,
}

impl Core {
    /// Visits every queue and connection.
    pub fn stats(&self) -> Stats {
        Stats {
            queues: self.state.queues.len(),
            exchanges: self.state.vhosts.iter().map(|vhost| vhost.exchanges.len()).sum(),
            messages_ready: self.state.queues.values().map(|queue| queue.ready()).sum(),
            messages_unacked: self.state.queues.values().map(|queue| queue.unacked()).sum(),
            message_bytes: self.state.tally.bytes(),
            resident_bytes: self.state.tally.resident_bytes(),
            connections: self.connections.len(),
            channels: self.connections.values().map(|connection| connection.channels.len()).sum(),
            consumers: self.consumers.len(),
            unconfirmed: self.unconfirmed,
        }
    }

    /// Oldest queue first.
    pub fn queue_stats(&self) -> Vec<QueueStats> {
        let mut queues: Vec<_> = self
            .state
            .queues
            .values()
            .map(|queue| QueueStats {
                id: queue.id,
                name: queue.spec.name.clone(),
                vhost: self.state.vhost(queue.vhost).name().clone(),
                durable: queue.spec.durable,
                ready: queue.ready(),
                unacked: queue.unacked(),
                message_bytes: queue.bytes(),
                consumers: queue.session.consumers.len(),
            })
            .collect();
        queues.sort_by_key(|queue| queue.id);
        queues
    }

    /// Bodies and properties, each message once, in memory or not, in bytes; costs nothing to ask.
    pub fn message_bytes(&self) -> u64 {
        self.state.tally.bytes()
    }

    /// Publishes that wait for their confirm; costs nothing to ask.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed
    }
}
