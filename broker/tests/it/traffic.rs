//! What a broker counts of its clients' messages is what they did.

use std::time::Instant;

use crate::harness::{Client, PATIENCE, Single, await_true};

#[test]
fn each_message_is_counted_once_on_each_part_of_its_way() {
    let broker = Single::start();
    let count = |what: &str| broker.metric(&format!("messages_{what}_total")).unwrap();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    // Nobody asks for the confirm of this one.
    let mut unconfirmed = Client::guest(broker.amqp());
    unconfirmed.publish("work", "0");
    await_true("it has been read", || count("published") == 1);
    // More than fits into one answer, and one that comes in parts.
    (1..500).for_each(|number| client.publish("work", format!("{number}")));
    client.publish("work", vec![0; 3 << 20]);
    client.await_confirms().unwrap();
    assert_eq!((count("published"), count("confirmed"), count("delivered")), (501, 500, 0));
    assert!(broker.metric("confirm_seconds_count").is_some_and(|timed| (1..=500).contains(&timed)));

    let got = client.get("work", false).unwrap();
    client.requeue(got.delivery_tag);
    client.consume("work", 0).unwrap();
    let deadline = Instant::now() + PATIENCE;
    (0..501).for_each(|_| assert!(client.next_delivery(deadline).is_some()));
    assert_eq!((count("published"), count("confirmed"), count("delivered")), (501, 500, 502));
}
