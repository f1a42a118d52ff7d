//! A client that a test runs on a node (see `understudy_e2e::InsideClient`): publishes to one broker, and answers one line
//! of JSON to each of `state`, `mark` and `finish` on its input. It ends with its input.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use tokio::sync::mpsc;
use understudy_bench::{Consumer, ConsumerPlan, Ledger, Publisher, PublisherPlan, QueuePlan, Target};
use understudy_e2e::{InsideAccount, InsideState};

const RATE: u64 = 100;
const MESSAGE_BYTES: usize = 256;
/// More than is sent while a test waits for the broker to say that it gave up: the client must not fall silent first.
const WINDOW: usize = 5000;
/// The broker ends the connection in these tests, never the client.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);
const DRAINS_WITHIN: Duration = Duration::from_secs(30);
/// Lines of input read ahead.
const INPUT_LINES: usize = 8;

#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    address: String,
    #[arg(long)]
    queue: String,
    #[arg(long)]
    user: String,
    #[arg(long, env = "AMQP_PASSWORD", hide_env_values = true)]
    password: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let target =
        Target { user: arguments.user, password: arguments.password, ..Target::local([arguments.address.as_str()]) };
    let queue = QueuePlan::durable(arguments.queue);
    let plan = PublisherPlan {
        message_bytes: MESSAGE_BYTES,
        window: WINDOW,
        rate: Some(RATE),
        silence_limit: SILENCE_LIMIT,
        ..PublisherPlan::default()
    };
    let ledger = Ledger::new();
    let publisher = Publisher::start(&ledger, target.clone(), queue.clone(), plan);
    let mut marked = None;
    let mut input = read_lines();
    while let Some(line) = input.recv().await {
        if line == "finish" {
            let account = finish(publisher, &ledger, &target, &queue).await;
            println!("{}", serde_json::to_string(&account)?);
            return Ok(());
        }
        if line == "mark" {
            let now = Instant::now();
            ledger.note_failure(now);
            marked = Some(now);
        }
        let confirmed_since_mark = match marked {
            Some(at) => publisher.recovery(at, Duration::ZERO).await.is_some(),
            None => false,
        };
        let state = InsideState {
            confirmed: publisher.confirmed(),
            confirmed_since_mark,
            connected: publisher.address().is_some(),
            reconnects: publisher.reconnects(),
        };
        println!("{}", serde_json::to_string(&state)?);
    }
    Ok(())
}

fn read_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(INPUT_LINES);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

async fn finish(publisher: Publisher, ledger: &Ledger, target: &Target, queue: &QueuePlan) -> InsideAccount {
    let report = publisher.stop(DRAINS_WITHIN).await;
    let consumer = Consumer::start(ledger, target.clone(), queue.clone(), ConsumerPlan::default());
    ledger.drained(DRAINS_WITHIN).await;
    consumer.stop().await;
    let account = ledger.account();
    InsideAccount {
        confirmed: account.confirmed,
        lost: account.lost,
        duplicated: account.duplicated,
        errors: report.errors,
    }
}
