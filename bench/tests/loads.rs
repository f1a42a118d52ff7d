//! Publishers, consumers and the ledger against brokers in memory, right ones and wrong ones: a ledger that never finds
//! anything proves nothing.

#![allow(clippy::unwrap_used, reason = "the broker of these tests is a test's part as well")]

mod fake;

use std::time::{Duration, Instant};

use fake::{Behaviour, FakeBroker, Shared};
use understudy_bench::{
    Account, AckPolicy, Consumer, ConsumerPlan, Ledger, LoadPlan, Publisher, PublisherPlan, PublisherReport, QueuePlan,
    Target, run_load,
};

/// No step takes nearly so long, unless it never ends.
const LIMIT: Duration = Duration::from_secs(30);

struct Pair {
    ledger: Ledger,
    publisher: Publisher,
    consumer: Consumer,
}

fn start(brokers: &[&FakeBroker], plan: PublisherPlan, ack: AckPolicy) -> Pair {
    let ledger = Ledger::new();
    let target = Target::local(brokers.iter().map(|broker| broker.address.clone()));
    let queue = QueuePlan::durable("q");
    let consumer_plan = ConsumerPlan { ack, ..ConsumerPlan::default() };
    let consumer = Consumer::start(&ledger, target.clone(), queue.clone(), consumer_plan);
    let publisher = Publisher::start(&ledger, target, queue, plan);
    Pair { ledger, publisher, consumer }
}

impl Pair {
    /// Stops the publisher, waits for `is_done` of the ledger or for everything to be delivered, stops the consumer.
    async fn finish(self, expect_drained: bool) -> (PublisherReport, Account) {
        let report = self.publisher.stop(LIMIT).await;
        let within = if expect_drained { LIMIT } else { Duration::from_millis(100) };
        assert_eq!(self.ledger.drained(within).await, expect_drained);
        self.consumer.stop().await;
        (report, self.ledger.account())
    }
}

#[tokio::test]
async fn everything_confirmed_arrives_once() {
    for ack in [AckPolicy::Each, AckPolicy::PerRead] {
        for message_bytes in [32, 1024, 300_000] {
            let broker = FakeBroker::start(&Shared::default(), Behaviour::Right).await;
            let pair = start(&[&broker], PublisherPlan { message_bytes, ..PublisherPlan::default() }, ack);
            assert!(pair.publisher.wait_confirmed(1000, LIMIT).await);
            let (report, account) = pair.finish(true).await;
            assert_eq!(report.errors, [] as [&str; 0]);
            assert_eq!(account.confirmed, report.confirmed);
            assert_eq!(account.sent, account.delivered);
            assert!(account.is_clean() && account.redelivered == 0 && account.foreign == 0, "{account}");
            assert_eq!(report.latency.count() > 0, report.measured_confirmed > 0);
        }
    }
}

#[tokio::test]
async fn a_broker_that_forgets_is_found_out() {
    let broker = FakeBroker::start(&Shared::default(), Behaviour::Forgets).await;
    let pair = start(&[&broker], PublisherPlan::default(), AckPolicy::Each);
    assert!(pair.publisher.wait_confirmed(1000, LIMIT).await);
    let (report, account) = pair.finish(false).await;
    assert_eq!(account.lost, report.confirmed / 10, "{account}");
    assert_eq!(account.lost_examples[0].1.0, 9);
    assert!(!account.is_clean());
}

#[tokio::test]
async fn a_broker_that_repeats_what_was_acknowledged_is_found_out() {
    let broker = FakeBroker::start(&Shared::default(), Behaviour::Repeats).await;
    let pair = start(&[&broker], PublisherPlan::default(), AckPolicy::PerRead);
    assert!(pair.publisher.wait_confirmed(1000, LIMIT).await);
    let (_, account) = pair.finish(true).await;
    assert!(account.duplicated > 0 && account.redelivered == 0 && account.lost == 0, "{account}");
}

#[tokio::test]
async fn what_a_broker_refuses_is_sent_again() {
    let broker = FakeBroker::start(&Shared::default(), Behaviour::Refuses).await;
    let pair = start(&[&broker], PublisherPlan::default(), AckPolicy::Each);
    assert!(pair.publisher.wait_confirmed(1000, LIMIT).await);
    let (report, account) = pair.finish(true).await;
    assert!(account.nacked >= 100, "{account}");
    assert_eq!(account.confirmed, report.confirmed);
    assert_eq!(account.sent, account.confirmed + account.nacked);
    assert!(account.is_clean() && account.resent == 0, "{account}");
}

#[tokio::test]
async fn a_killed_broker_is_left_for_the_next_and_nothing_is_lost() {
    let shared = Shared::default();
    let mut first = FakeBroker::start(&shared, Behaviour::Right).await;
    let mut second = FakeBroker::start(&shared, Behaviour::Right).await;
    let pair = start(&[&first, &second], PublisherPlan::default(), AckPolicy::Each);
    for kill in 1..=5 {
        assert!(pair.publisher.wait_confirmed(pair.publisher.confirmed() + 300, LIMIT).await);
        assert_eq!(pair.publisher.address().as_ref(), Some(&first.address));
        let address = first.address.clone();
        first.kill().await;
        let at = Instant::now();
        pair.ledger.note_failure(at);
        let gap = pair.publisher.recovery(at, LIMIT).await.expect("the second broker answers");
        assert!(gap > Duration::ZERO);
        assert_eq!(pair.publisher.reconnects(), kill);
        // The next one to be killed is the one in use; its successor takes the address that is free now.
        first = second;
        second = FakeBroker::start_at(&address, &shared, Behaviour::Right).await;
    }
    let (report, account) = pair.finish(true).await;
    assert!(account.is_clean(), "{account}");
    assert_eq!(report.recoveries.len(), 5);
    assert!(report.recoveries.iter().all(|recovery| recovery.after.is_some()));
    assert_eq!(account.abandoned + account.confirmed, account.sent);
    assert!(report.unconfirmed == 0 && account.unflagged == 0);
}

#[tokio::test]
async fn a_broker_that_never_confirms_is_left_for_the_next() {
    let shared = Shared::default();
    let mute = FakeBroker::start(&shared, Behaviour::NeverConfirms).await;
    let right = FakeBroker::start(&shared, Behaviour::Right).await;
    let plan = PublisherPlan { silence_limit: Duration::from_millis(50), window: 7, ..PublisherPlan::default() };
    let pair = start(&[&mute, &right], plan, AckPolicy::Each);
    assert!(pair.publisher.wait_confirmed(1, LIMIT).await);
    let (report, account) = pair.finish(true).await;
    assert_eq!(account.abandoned, 7);
    assert_eq!(report.errors.len(), 1);
    assert!(report.errors[0].contains("no confirm for"), "{:?}", report.errors);
    assert!(report.longest_silence >= Duration::from_millis(50));
}

#[tokio::test]
async fn without_an_answer_a_publisher_stops_at_its_limit() {
    let mute = FakeBroker::start(&Shared::default(), Behaviour::NeverConfirms).await;
    let pair = start(&[&mute], PublisherPlan { window: 7, ..PublisherPlan::default() }, AckPolicy::Each);
    while pair.ledger.account().sent < 7 {
        tokio::task::yield_now().await;
    }
    let report = pair.publisher.stop(Duration::from_millis(20)).await;
    assert_eq!((report.confirmed, report.unconfirmed), (0, 7));
    pair.consumer.stop().await;
}

#[tokio::test]
async fn a_rate_is_kept_and_a_load_reports() {
    let broker = FakeBroker::start(&Shared::default(), Behaviour::Right).await;
    let mut plan = LoadPlan::new(QueuePlan::durable("q"), Duration::from_secs(1));
    plan.publishers = 2;
    plan.consumers = 2;
    plan.publisher.rate = Some(100);
    let report = run_load(&Target::local([broker.address.clone()]), &plan).await.unwrap();
    // Never more than the rate; how much less depends on the machine.
    assert!((1..=202).contains(&report.account.sent), "{}", report.account);
    assert!(report.account.is_clean(), "{}", report.account);
    assert_eq!(report.errors, [] as [&str; 0]);
    assert!(report.confirm.count > 0 && report.end_to_end.count > 0);
}

#[tokio::test]
async fn a_limit_is_kept_also_when_messages_are_refused() {
    for behaviour in [Behaviour::Right, Behaviour::Refuses] {
        let broker = FakeBroker::start(&Shared::default(), behaviour).await;
        let pair = start(&[&broker], PublisherPlan { limit: Some(777), ..PublisherPlan::default() }, AckPolicy::Each);
        assert!(pair.publisher.wait_confirmed(777, LIMIT).await);
        let (report, account) = pair.finish(true).await;
        assert_eq!((report.confirmed, account.delivered), (777, 777), "{account}");
    }
}

#[tokio::test]
async fn without_a_broker_a_load_says_so() {
    let broker = FakeBroker::start(&Shared::default(), Behaviour::Right).await;
    let address = broker.address.clone();
    broker.kill().await;
    let plan = LoadPlan::new(QueuePlan::durable("q"), Duration::from_secs(1));
    let error = run_load(&Target::local([address]), &plan).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let none = run_load(&Target::local([] as [&str; 0]), &plan).await.unwrap_err();
    assert_eq!(none.to_string(), "no address to connect to");
}
