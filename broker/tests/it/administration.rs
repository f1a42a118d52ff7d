//! Virtual hosts, users and permissions of a cluster, as an administrator makes them by the command line and clients meet them:
//! at once, on each broker, after the primary's death, a restart of all, and a catch-up.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use understudy_protocol::{ClientConfig, ClientEnd, basic, queue};

use crate::harness::{Client, Cluster, await_true, short};

fn config(user: &str, password: &str, vhost: &str) -> ClientConfig {
    ClientConfig {
        user: user.to_owned(),
        password: password.to_owned(),
        virtual_host: vhost.to_owned(),
        heartbeat_seconds: 0,
        ..Default::default()
    }
}

fn enter(to: SocketAddr, user: &str, password: &str, vhost: &str) -> Result<Client, ClientEnd> {
    Client::connect(to, config(user, password, vhost))
}

#[track_caller]
fn refusal(to: SocketAddr, user: &str, password: &str, vhost: &str) -> String {
    match enter(to, user, password, vhost) {
        Ok(_) => panic!("{user} was let into {vhost}"),
        Err(end) => end.to_string(),
    }
}

/// `shop`, and in it anna, who may do everything there that begins with `a`, and publish to queues.
fn shop(cluster: &Cluster) {
    cluster.understudy(&["vhost", "add", "shop", "--description", "A shop"]).unwrap();
    cluster.understudy_with(&["user", "add", "anna"], "secret\n").unwrap();
    let pattern = "^a";
    let set = ["permission", "set", "anna", pattern, "^(a|amq\\.default)", pattern, "--vhost", "shop"];
    cluster.understudy(&set).unwrap();
}

#[test]
fn what_an_administrator_sets_holds_for_clients_at_once_whichever_broker_they_reach() {
    let cluster = Cluster::start();
    let at = cluster.addresses()[cluster.backups()[0]];
    assert!(refusal(at, "anna", "secret", "shop").contains("403"), "nobody knows her");
    shop(&cluster);
    assert!(refusal(at, "anna", "wrong", "shop").contains("ACCESS_REFUSED - Login was refused"));
    let text = refusal(at, "anna", "secret", "/");
    assert!(text.contains("NOT_ALLOWED - access to vhost '/' refused for user 'anna'"), "{text}");
    let text = refusal(at, "anna", "secret", "none");
    assert!(text.contains("NOT_ALLOWED - vhost none not found"), "{text}");

    let mut anna = enter(at, "anna", "secret", "shop").unwrap();
    anna.declare("a1").unwrap();
    anna.select_confirms();
    anna.publish_confirmed("a1", "of anna").unwrap();
    let refused = anna.declare("b1").unwrap_err();
    assert_eq!(refused.code(), 403);
    let expected = "ACCESS_REFUSED - access to queue 'b1' in vhost 'shop' refused for user 'anna'";
    assert_eq!(refused.text(), expected);

    // Nothing of it is in the other virtual host, and guest may do everything.
    let refused = Client::guest(at).call(basic::Consume { queue: short("a1"), ..Default::default() }).unwrap_err();
    assert_eq!(refused.text(), "NOT_FOUND - no queue 'a1' in vhost '/'");
    let mut guest = enter(at, "guest", "guest", "shop").unwrap();
    assert_eq!(guest.get("a1", true).unwrap().body.to_contiguous(), "of anna");

    // A change reaches who is connected; another password does not.
    let mut anna = enter(at, "anna", "secret", "shop").unwrap();
    cluster.understudy(&["user", "password", "anna", "other"]).unwrap();
    anna.declare("a2").unwrap();
    assert!(refusal(at, "anna", "secret", "shop").contains("Login was refused"));
    cluster.understudy(&["permission", "set", "anna", "", "", "", "--vhost", "shop"]).unwrap();
    let refused = anna.declare("a3").unwrap_err();
    assert_eq!(refused.text(), "ACCESS_REFUSED - access to queue 'a3' in vhost 'shop' refused for user 'anna'");

    // With the user or the virtual host go the connections.
    let mut anna = enter(at, "anna", "other", "shop").unwrap();
    cluster.understudy(&["user", "delete", "anna"]).unwrap();
    let end = anna.await_ended().to_string();
    assert!(end.contains("CONNECTION_FORCED - user 'anna' is deleted"), "{end}");
    assert!(refusal(at, "anna", "other", "shop").contains("Login was refused"));
    cluster.understudy(&["vhost", "delete", "shop"]).unwrap();
    let end = guest.await_ended().to_string();
    assert!(end.contains("CONNECTION_FORCED - vhost 'shop' is deleted"), "{end}");
    assert!(cluster.understudy(&["vhost", "delete", "shop"]).unwrap_err().contains("there is no virtual host 'shop'"));
}

#[test]
fn limits_are_those_of_rabbitmq() {
    let cluster = Cluster::start();
    shop(&cluster);
    let at = cluster.addresses()[cluster.primary()];
    cluster.understudy(&["limit", "set", "max-queues", "1", "--vhost", "shop"]).unwrap();
    cluster.understudy(&["limit", "set", "max-connections", "2", "--vhost", "shop"]).unwrap();
    cluster.understudy(&["limit", "set", "max-channels", "2", "--user", "anna"]).unwrap();
    let mut anna = enter(at, "anna", "secret", "shop").unwrap();
    anna.declare("a1").unwrap();
    let refused = anna.declare("a2").unwrap_err();
    let expected = "PRECONDITION_FAILED - cannot declare queue 'a2': queue limit in vhost 'shop' (1) is reached";
    assert_eq!((refused.code(), refused.text().as_str()), (406, expected));
    let mut other = enter(at, "anna", "secret", "shop").unwrap();
    let text = refusal(at, "anna", "secret", "shop");
    let expected = "access to vhost 'shop' refused for user 'anna': connection limit (2) is reached";
    assert!(text.contains(expected), "{text}");
    // The failed channel of the first connection is open no more.
    other.open_channel(understudy_protocol::ChannelId(2));
    other.open_channel(understudy_protocol::ChannelId(3));
    let end = other.await_ended().to_string();
    let expected = "number of channels opened for user 'anna' has reached the maximum allowed user limit of (2)";
    assert!(end.contains(expected), "{end}");
}

/// All of it as the command line shows it.
fn everything(cluster: &Cluster) -> Value {
    let text = cluster.understudy(&["definitions", "export"]).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn all_of_it_survives_the_primary_a_catch_up_and_a_restart_of_all() {
    let mut cluster = Cluster::start_with(|settings| settings.extra.push("--resume-records=1".into()));
    shop(&cluster);
    cluster.understudy(&["permission", "set", "anna", "^w", "", "--topic", "amq.topic", "--vhost", "shop"]).unwrap();
    cluster.understudy(&["limit", "set", "max-queues", "9", "--vhost", "shop"]).unwrap();
    cluster.understudy(&["user", "tags", "anna", "monitoring"]).unwrap();
    cluster.understudy(&["user", "delete", "guest"]).unwrap();
    let addresses = cluster.addresses();
    let mut anna = enter(addresses[cluster.primary()], "anna", "secret", "shop").unwrap();
    anna.select_confirms();
    anna.declare("a1").unwrap();
    // More than there is, so that a replica with an empty disk gets a base.
    (0..2000).for_each(|_| anna.publish("a1", "gone"));
    anna.await_confirms().unwrap();
    anna.purge("a1").unwrap();
    anna.publish_confirmed("a1", "kept").unwrap();
    let before = everything(&cluster);
    assert_eq!(before["users"].as_array().unwrap().len(), 1);

    let check = |cluster: &Cluster| {
        let at = addresses[cluster.primary()];
        assert_eq!(everything(cluster), before);
        assert!(refusal(at, "guest", "guest", "/").contains("Login was refused"));
        let mut anna = enter(at, "anna", "secret", "shop").unwrap();
        let got = anna.call(queue::Declare { queue: short("a1"), passive: true, ..Default::default() });
        assert!(got.is_ok(), "{got:?}");
        let message = anna.get("a1", false).expect("it is there");
        assert_eq!(message.body.to_contiguous(), "kept");
        assert_eq!(anna.declare("b").unwrap_err().code(), 403);
    };
    // The primary's death.
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    cluster.await_other_primary(primary);
    check(&cluster);
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();

    // A replica that has nothing, which is then the one to have everything.
    let [backup, other] = cluster.backups();
    let primary = cluster.primary();
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    let bases = "a follower catches up from a sync point";
    assert!(cluster.brokers[primary].log().contains(bases), "it was sent the log");
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    check_all_back(&mut cluster, &[primary, other]);
    check(&cluster);

    // All of them at once.
    (0..3).for_each(|at| cluster.brokers[at].kill());
    (0..3).for_each(|at| cluster.brokers[at].restart());
    cluster.await_all_in_sync();
    check(&cluster);
    // Every replica's state is compared with the primary's, as in every test: none may differ.
    await_true("a pass of the scrub is through", || {
        cluster.brokers[cluster.primary()].metric("scrub_passes_total").is_none_or(|passes| passes > 0)
    });
}

fn check_all_back(cluster: &mut Cluster, restarted: &[usize]) {
    restarted.iter().for_each(|at| cluster.brokers[*at].restart());
    cluster.await_all_in_sync();
}

/// What `rabbitmqctl export_definitions` of RabbitMQ 3.10.8 has written. It leaves internal exchanges out, but not bindings to
/// them, and so cannot be brought in whole by RabbitMQ either.
const RABBITMQ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/data/rabbitmq-3.10.8.json");

#[test]
fn what_rabbitmq_has_exported_is_brought_in_and_exported_again() {
    let cluster = Cluster::start();
    let report = cluster.understudy(&["definitions", "import", RABBITMQ]).unwrap_err();
    let lines: BTreeSet<&str> = report.lines().collect();
    for line in [
        "refused: binding of queue 'orders' to exchange 'rest' by '' in vhost '/': NOT_FOUND - no exchange 'rest' in vhost '/'",
        "refused: binding of exchange 'rest' to exchange 'events' by 'x.*' in vhost 'shop': NOT_FOUND - no exchange 'rest' \
         in vhost 'shop'",
        "27 changed, 3 as they were, 0 differ, 4 refused, 0 not taken",
    ] {
        assert!(lines.contains(line), "{line:?} is not in:\n{report}");
    }
    // A second time there is nothing to do.
    let again = cluster.understudy(&["definitions", "import", RABBITMQ]).unwrap_err();
    assert!(again.contains("0 changed, 30 as they were, 0 differ, 4 refused, 0 not taken"), "{again}");

    // Users log in by RabbitMQ's hashes; the one that was there without a record is the file's.
    let at = cluster.addresses()[cluster.primary()];
    enter(at, "anna", "secret", "shop").unwrap().declare("orders").unwrap_err();
    enter(at, "guest", "guest", "/").unwrap();
    assert!(refusal(at, "guest", "guest", "shop").contains("access to vhost 'shop' refused for user 'guest'"));

    // What was taken stands in our own export as it stood there.
    let text = std::fs::read_to_string(RABBITMQ).unwrap();
    let (theirs, ours): (Value, Value) = (serde_json::from_str(&text).unwrap(), everything(&cluster));
    let sorted = |of: &Value, section: &str| -> BTreeSet<String> {
        let entries = of[section].as_array().unwrap().iter();
        let entries = entries.filter(|entry| entry["source"] != "rest" && entry["destination"] != "rest");
        entries.map(Value::to_string).collect()
    };
    for section in
        ["users", "permissions", "topic_permissions", "parameters", "policies", "exchanges", "queues", "bindings"]
    {
        assert_eq!(sorted(&ours, section), sorted(&theirs, section), "{section}");
    }
    // And comes in again, here and in an empty cluster.
    let exported = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(exported.path(), ours.to_string()).unwrap();
    let file = exported.path().to_str().unwrap();
    let report = cluster.understudy(&["definitions", "import", file]).unwrap();
    assert!(report.contains("0 changed, 30 as they were, 0 differ, 0 refused, 0 not taken"), "{report}");
    drop(cluster); // there are not places for two
    let empty = Cluster::start();
    let report = empty.understudy(&["definitions", "import", file]).unwrap();
    assert!(report.contains("27 changed, 3 as they were, 0 differ, 0 refused, 0 not taken"), "{report}");
    assert_eq!(everything(&empty), ours);
}

#[test]
fn policies_hold_at_once_and_survive_the_primary() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.select_confirms();
    for queue in ["a", "b"] {
        client.declare(queue).unwrap();
        (1..=5).for_each(|number| client.publish_confirmed(queue, number.to_string()).unwrap());
    }
    let dead = r#"{"max-length": 3, "dead-letter-exchange": "", "dead-letter-routing-key": "b"}"#;
    cluster.understudy(&["policy", "set", "short", "^a", dead, "--apply-to", "queues", "--priority", "-2"]).unwrap();
    let bound = ["policy", "set", "bound", "^(?!amq\\.)", r#"{"max-length": 2}"#, "--operator"];
    let said = cluster.understudy(&bound).unwrap();
    assert_eq!(said, "operator policy 'bound' in virtual host '/' is set\n");
    assert!(cluster.understudy(&bound).unwrap().contains("was so already"));
    let length = |client: &mut Client, queue: &str| client.declare(queue).unwrap().message_count;
    await_true("both queues are as short as they may be", || {
        (length(&mut client, "a"), length(&mut client, "b")) == (2, 2)
    });
    let wrong = cluster.understudy(&["policy", "set", "wrong", "", r#"{"max-size": 1}"#]).unwrap_err();
    assert!(wrong.contains(r#"[{<<"max-size">>,1}] are not recognised policy settings"#), "{wrong}");

    let listed = |cluster: &Cluster, operator: &[&str]| -> Value {
        let text = cluster.understudy(&[&["policy", "list", "--json"], operator].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let (own, operators) = (listed(&cluster, &[]), listed(&cluster, &["--operator"]));
    assert_eq!(
        (&own[0]["name"], &own[0]["priority"], &own[0]["applyTo"]),
        (&"short".into(), &(-2).into(), &"queues".into())
    );
    assert_eq!(operators[0]["definition"]["max-length"], 2);
    let exported = everything(&cluster);
    assert_eq!(exported["policies"][0]["definition"]["dead-letter-routing-key"], "b");
    assert_eq!(exported["parameters"][0]["value"]["definition"], serde_json::json!([["max-length", 2]]));

    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let next = cluster.await_other_primary(primary);
    let after = (listed(&cluster, &[]), listed(&cluster, &["--operator"]), everything(&cluster));
    assert_eq!(after, (own, operators, exported));
    let mut client = Client::guest(cluster.addresses()[next]);
    client.select_confirms();
    client.publish_confirmed("a", "6").unwrap();
    await_true("they are as short as before", || (length(&mut client, "a"), length(&mut client, "b")) == (2, 2));
    cluster.understudy(&["policy", "clear", "bound", "--operator"]).unwrap();
    client.publish_confirmed("a", "7").unwrap();
    assert_eq!(length(&mut client, "a"), 3);
    // The four before it died, and went to `b`.
    assert_eq!(client.get("a", true).unwrap().body.to_contiguous(), "5");
}

#[test]
fn what_exists_and_differs_is_said_and_stays() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("orders").unwrap();
    let report = cluster.understudy(&["definitions", "import", RABBITMQ]).unwrap_err();
    let line = "differs: queue 'orders' in vhost '/': PRECONDITION_FAILED - inequivalent arg 'x-";
    assert!(report.contains(line), "{report}");
    assert_eq!(client.declare("orders").unwrap().message_count, 0);
}
