//! A byte of an old segment that has changed on the disk: nothing wrong is ever handed out, the next replica has it whole, and
//! the damaged one is repaired from it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::numbered::{body, number_of};
use super::{files, make_primary, pass_traffic_until, small};
use crate::harness::{Client, Cluster, PATIENCE};

const MESSAGES: u64 = 200;
const DAMAGED: u64 = 60;

/// Changes one byte in the middle of this message's body, and says in which file.
fn damage(data: &Path, number: u64) -> PathBuf {
    let body = body(number);
    let (begin, middle) = (&body[..32], body.len() as u64 / 2);
    for file in files(data, "").into_iter().filter(|name| name.ends_with(".seg")).map(|name| data.join(name)) {
        let bytes = std::fs::read(&file).unwrap();
        let Some(at) = bytes.windows(begin.len()).position(|window| window == begin) else { continue };
        let at = at as u64 + middle;
        let flipped = bytes[usize::try_from(at).unwrap()] ^ 0x10;
        std::fs::File::options().write(true).open(&file).unwrap().write_all_at(&[flipped], at).unwrap();
        return file;
    }
    panic!("message {number} is in no segment of {data:?}");
}

#[test]
fn a_replica_that_cannot_read_a_message_gives_up_its_role_and_another_serves_it_whole() {
    let mut cluster = Cluster::start_with(small);
    let mut client = cluster.client();
    client.select_confirms();
    client.declare("work").unwrap();
    for number in 0..MESSAGES {
        client.publish("work", body(number));
    }
    client.await_confirms().unwrap();
    let damaged = cluster.primary();
    let checkpoints = |cluster: &Cluster| cluster.brokers[damaged].metric("checkpoints_total").unwrap();
    let goal = checkpoints(&cluster) + 2;
    pass_traffic_until(&mut client, "two checkpoints", || checkpoints(&cluster) >= goal);
    client.close();

    cluster.brokers[damaged].kill();
    let segment = damage(&cluster.brokers[damaged].settings.data, DAMAGED);
    cluster.brokers[damaged].restart();
    make_primary(&mut cluster, damaged);
    let mut client = cluster.client();
    client.consume("work", 10).unwrap();
    let mut next = 0;
    while let Some(delivery) = client.next_delivery(Instant::now() + PATIENCE) {
        assert_eq!(number_of(&delivery.body), next);
        client.ack(delivery.delivery_tag, false);
        next += 1;
    }
    assert!(client.ended().is_some(), "it went silent after {next} messages");
    assert!(next <= DAMAGED);
    let broker = &mut cluster.brokers[damaged];
    assert!(!broker.await_end().success());
    let log = broker.log();
    let said = log.lines().last().unwrap_or_default();
    let name = segment.file_name().unwrap().to_str().unwrap();
    assert!(
        said.contains("messages cannot be read back: the log is damaged: ")
            && said.contains(&format!("{name} at byte ")),
        "{said}"
    );

    let new = cluster.await_other_primary(damaged);
    let mut client = Client::guest(cluster.brokers[new].amqp());
    let mut seen = Vec::new();
    while let Some(got) = client.get("work", true) {
        seen.push(number_of(&got.body));
    }
    assert!(seen.first().is_some_and(|first| *first <= next), "{next} to come, and it begins with {:?}", seen.first());
    assert!(seen.iter().copied().eq(seen[0]..MESSAGES), "{seen:?}");
    drop(client);

    // The damaged one does not count on its log any more: it leaves the set, fetches everything, and comes back whole.
    cluster.brokers[damaged].restart();
    cluster.await_all_in_sync();
    let log = cluster.brokers[damaged].log();
    assert!(log.contains("resume=Base"), "{log}");
    assert!(segment.metadata().is_err(), "the damaged segment is gone");
}
