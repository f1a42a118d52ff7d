//! An ordinary client of a cluster: one publisher with confirms, one consumer with acknowledgements, and the ledger of
//! what became of each message.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use understudy_bench::{
    Account, Consumer, ConsumerPlan, Ledger, Publisher, PublisherPlan, PublisherReport, QueuePlan, Target,
};

use crate::report::Failure;

/// Messages a second. Three brokers, a control plane and the client share the machine: a rate that leaves it time for them.
pub const RATE: u64 = 200;
const MESSAGE_BYTES: usize = 512;
/// In flight at most: some confirms' worth at this rate, so that a failure always meets unconfirmed messages.
const WINDOW: usize = 200;
/// An ordinary client notices a dead connection by heartbeats, after two of their periods.
const SILENCE_LIMIT: Duration = Duration::from_millis(1500);
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Longer than any failover here, however busy the machine.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
const DRAINS_WITHIN: Duration = Duration::from_secs(60);

pub struct Load {
    ledger: Ledger,
    publisher: Publisher,
    consumer: Option<Consumer>,
    target: Target,
    queue: QueuePlan,
}

/// A load whose messages are all confirmed, and perhaps not all consumed.
pub struct Published {
    ledger: Ledger,
    consumer: Option<Consumer>,
    target: Target,
    queue: QueuePlan,
    report: PublisherReport,
}

/// What a client saw of a failure.
#[derive(Clone, Debug)]
pub struct Aftermath {
    pub account: Account,
    /// Longest time that messages waited without any confirm.
    pub longest_silence: Duration,
    /// How often the publisher, and the consumer, had to connect anew.
    pub reconnects: u64,
    pub consumer_reconnects: u64,
    /// What the publisher's connections ended with.
    pub errors: Vec<String>,
}

impl Load {
    /// Returns once messages are confirmed and delivered.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn start(target: &Target, queue: &str) -> Result<Self> {
        let mut load = Self::start_backlog(target, queue).await?;
        load.consumer = Some(consume(&load.ledger, &load.target, &load.queue).await?);
        Ok(load)
    }

    /// Without a consumer: messages stay in the queue.
    ///
    /// # Errors
    /// If nothing is confirmed for long.
    pub async fn start_backlog(target: &Target, queue: &str) -> Result<Self> {
        let ledger = Ledger::new();
        let queue = QueuePlan::durable(queue);
        let plan = PublisherPlan {
            message_bytes: MESSAGE_BYTES,
            window: WINDOW,
            rate: Some(RATE),
            silence_limit: SILENCE_LIMIT,
            ..PublisherPlan::default()
        };
        let publisher = Publisher::start(&ledger, target.clone(), queue.clone(), plan);
        let load = Self { ledger, publisher, consumer: None, target: target.clone(), queue };
        load.confirms(RATE / 2, STARTS_WITHIN).await?;
        Ok(load)
    }

    pub fn confirmed(&self) -> u64 {
        self.publisher.confirmed()
    }

    pub fn is_connected(&self) -> bool {
        self.publisher.address().is_some()
    }

    pub fn reconnects(&self) -> u64 {
        self.publisher.reconnects()
    }

    /// Whether the broker said that it takes no messages for now.
    pub fn blocked(&self) -> bool {
        self.publisher.blocked()
    }

    /// Waits for so many more confirms.
    ///
    /// # Errors
    /// After the deadline.
    pub async fn confirms(&self, more: u64, within: Duration) -> Result<()> {
        let wanted = self.publisher.confirmed() + more;
        if self.publisher.wait_confirmed(wanted, within).await {
            return Ok(());
        }
        let (now, at) = (self.publisher.confirmed(), self.publisher.address());
        bail!("{now} confirms instead of {wanted} after {} s; connected to {at:?}", within.as_secs())
    }

    /// To be called right after a failure: how long until a message sent after it is confirmed.
    ///
    /// # Errors
    /// If none is for long.
    pub async fn recovery(&self, failure: Failure) -> Result<Duration> {
        self.ledger.note_failure(failure.at);
        let recovered = self.publisher.recovery(failure.at, RECOVERS_WITHIN).await;
        let at = self.publisher.address();
        let recovered = recovered.with_context(|| {
            format!(
                "no message sent after the failure was confirmed within {} s; connected to {at:?}",
                RECOVERS_WITHIN.as_secs()
            )
        })?;
        // It is no flicker: another second's worth goes through as well.
        self.confirms(RATE, RECOVERS_WITHIN).await?;
        Ok(recovered + failure.lead)
    }

    /// Stops publishing, with everything sent confirmed.
    ///
    /// # Errors
    /// If something is not.
    pub async fn stop_publishing(self) -> Result<Published> {
        let report = self.publisher.stop(DRAINS_WITHIN).await;
        ensure!(report.unconfirmed == 0, "{} messages were never confirmed: {:?}", report.unconfirmed, report.errors);
        let Self { ledger, consumer, target, queue, .. } = self;
        Ok(Published { ledger, consumer, target, queue, report })
    }

    /// Stops publishing, waits for every confirmed message's delivery, and checks the ledger.
    ///
    /// # Errors
    /// If a confirmed message was lost, or one was delivered again whose acknowledgement had been taken.
    pub async fn finish(self) -> Result<Aftermath> {
        self.stop_publishing().await?.finish().await
    }
}

impl Published {
    /// # Errors
    /// As those of [`Load::finish`].
    pub async fn finish(self) -> Result<Aftermath> {
        let consumer = match self.consumer {
            Some(consumer) => consumer,
            None => consume(&self.ledger, &self.target, &self.queue).await?,
        };
        let drained = self.ledger.drained(DRAINS_WITHIN).await;
        let consumed = consumer.stop().await;
        let account = self.ledger.account();
        ensure!(
            account.is_clean() && drained && account.foreign == 0,
            "the ledger is not clean:\n{account}{account:?}"
        );
        ensure!(account.unflagged == 0, "second deliveries did not say so:\n{account}");
        let PublisherReport { longest_silence, reconnects, errors, .. } = self.report;
        Ok(Aftermath { account, longest_silence, reconnects, consumer_reconnects: consumed.reconnects, errors })
    }
}

/// Returns once the consumer is accepted.
async fn consume(ledger: &Ledger, target: &Target, queue: &QueuePlan) -> Result<Consumer> {
    let consumer = Consumer::start(ledger, target.clone(), queue.clone(), ConsumerPlan::default());
    ensure!(consumer.wait_ready(STARTS_WITHIN).await, "the consumer is not accepted at {:?}", target.addresses);
    Ok(consumer)
}
