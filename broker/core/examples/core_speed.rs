//! How long the core takes for a message: published in confirm mode, committed, confirmed, delivered, acknowledged.
//!
//! `cargo run --release -p understudy-core --example core_speed`

use std::time::{Duration, Instant};

use bytes::Bytes;
use understudy_core::{
    ChannelId, Command, ConnectionId, ConnectionInfo, Core, DeliveryTag, EffectKind, Outputs, Publish,
};
use understudy_record::{Body, ShortStr};

const MESSAGES: u64 = 1_000_000;

const PUBLISHER: ConnectionId = ConnectionId(1);
const CONSUMER: ConnectionId = ConnectionId(2);
const CHANNEL: ChannelId = ChannelId(1);

fn main() {
    for batch in [1, 16, 256] {
        let mut run = Run::new(0);
        let took = run.flow(batch, MESSAGES);
        println!("{batch:>4} messages a step, empty queue: {}", each(took, MESSAGES));
    }
    let backlog = 1_000_000;
    let mut run = Run::new(backlog);
    let took = run.flow(256, MESSAGES);
    println!(" 256 messages a step, {backlog} waiting: {}", each(took, MESSAGES));
}

fn each(took: Duration, messages: u64) -> String {
    format!("{:.0} ns a message", took.as_nanos() as f64 / messages as f64)
}

struct Run {
    core: Core,
    out: Outputs,
    message: Publish,
}

impl Run {
    fn new(backlog: u64) -> Self {
        let mut core = Core::new(1);
        let mut out = Outputs::default();
        core.promote(&mut out);
        for connection in [PUBLISHER, CONSUMER] {
            core.connection_opened(
                connection,
                ConnectionInfo { consumer_cancel_notify: true, ..ConnectionInfo::default() },
            )
            .expect("it may do everything");
            core.handle(connection, CHANNEL, Command::ChannelOpen, &mut out);
        }
        let queue = ShortStr::from_static("queue");
        let declare = Command::QueueDeclare {
            name: queue.clone(),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: true,
            arguments: Bytes::new(),
        };
        core.handle(PUBLISHER, CHANNEL, declare, &mut out);
        core.handle(PUBLISHER, CHANNEL, Command::ConfirmSelect { no_wait: true }, &mut out);
        let message = Publish {
            exchange: ShortStr::EMPTY,
            routing_key: queue.clone(),
            mandatory: false,
            immediate: false,
            properties: Bytes::from_static(&[0x10, 0, 2]),
            body: Body::new(Bytes::from_static(&[0; 1024])),
        };
        let mut run = Self { core, out, message };
        run.step(backlog, |_, _| {});
        let consume = Command::BasicConsume {
            queue,
            consumer_tag: ShortStr::from_static("c"),
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: true,
            arguments: Bytes::new(),
        };
        let limit = Command::BasicQos { prefetch_size: 0, prefetch_count: 2000, global: false };
        run.core.handle(CONSUMER, CHANNEL, limit, &mut run.out);
        run.core.handle(CONSUMER, CHANNEL, consume, &mut run.out);
        run
    }

    /// The consumer acknowledges each delivery by itself.
    fn flow(&mut self, batch: u64, messages: u64) -> Duration {
        let started = Instant::now();
        let (mut confirmed, mut deliveries) = (0, Vec::new());
        for _ in 0..messages / batch {
            for tag in std::mem::take(&mut deliveries) {
                let ack = Command::BasicAck { delivery_tag: tag, multiple: false };
                self.core.handle(CONSUMER, CHANNEL, ack, &mut self.out);
            }
            self.step(batch, |kind, delivered: Option<DeliveryTag>| match kind {
                Some(up_to) => confirmed = up_to,
                None => deliveries.extend(delivered),
            });
        }
        assert!(confirmed >= messages / batch * batch, "{confirmed} confirmed");
        started.elapsed()
    }

    fn step(&mut self, publishes: u64, mut seen: impl FnMut(Option<u64>, Option<DeliveryTag>)) {
        for _ in 0..publishes {
            self.core.handle(PUBLISHER, CHANNEL, Command::BasicPublish(self.message.clone()), &mut self.out);
        }
        self.core.deliver(&mut self.out);
        let last = self.core.last_index();
        self.core.handle_committed(last, last, &mut self.out);
        self.core.deliver(&mut self.out);
        self.out.records.clear();
        for effect in self.out.effects.drain(..) {
            match effect.kind {
                EffectKind::PublisherAck { delivery_tag, .. } => seen(Some(delivery_tag.0), None),
                EffectKind::BasicDeliver { delivery_tag, .. } => seen(None, Some(delivery_tag)),
                _ => {}
            }
        }
    }
}
