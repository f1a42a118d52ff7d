//! `understudy-broker inspect`, on what a killed broker left and beside one that works.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Client, Load, Single, await_true, drain_numbers};

/// Above what a checkpoint needs to be worth its while here.
const BODY_BYTES: usize = 2000;

fn inspect(dir: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_understudy-broker"));
    // As in a pod, where the broker's own arguments come from the environment.
    command.env("UNDERSTUDY_NAME", "solo-0").env("UNDERSTUDY_CLUSTER", "test");
    command.arg("inspect").arg(dir).args(options).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// A broker that makes a checkpoint every few dozen messages.
fn start() -> Single {
    Single::start_with(|settings| {
        settings.extra = ["--segment-bytes", "65536", "--checkpoint-bytes", "65536"].map(String::from).into();
    })
}

#[test]
fn what_a_killed_broker_left_is_told_and_left_alone() {
    let mut broker = start();
    let data = broker.settings.data.clone();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    let body = |number: u64| format!("{number:0>BODY_BYTES$}");
    await_true("a checkpoint is in force", || {
        (0..20).for_each(|number| client.publish("work", body(number)));
        client.await_confirms().unwrap();
        data.join("checkpoint").exists()
    });
    broker.kill();

    let before = contents(&data);
    let shown = inspect(&data, &[]);
    let page = text(&shown);
    assert_eq!(shown.status.code(), Some(0), "{page}");
    assert!(page.contains("nobody uses it") && page.contains("checkpoint as of record"), "{page}");
    assert!(page.trim_end().ends_with("live messages, no damage"), "{page}");

    let shown = inspect(&data, &["--verify", "--json"]);
    let found = json(&shown);
    assert_eq!((shown.status.code(), &found["damage"]), (Some(0), &Value::Array(Vec::new())), "{found:#}");
    assert_eq!((&found["used_by"], &found["verified"]), (&Value::Null, &Value::Bool(true)), "{found:#}");
    assert_eq!(found["bytes_read"], found["bytes"], "{found:#}");
    let segments = found["segments"].as_array().unwrap();
    let names: Vec<&str> = segments.iter().map(|segment| segment["name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| before.contains_key(*name)), "{names:?}");
    // Nothing was consumed: what the checkpoint names are the messages of the segments that it speaks of.
    let told = segments.iter().filter_map(|segment| segment["live"].as_u64()).sum::<u64>();
    assert!(told > 0 && Some(told) == found["live_messages"].as_u64(), "{found:#}");
    assert!(contents(&data) == before, "something in the directory was changed");

    let oldest = data.join(names[0]);
    let mut bytes = std::fs::read(&oldest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&oldest, &bytes).unwrap();
    let shown = inspect(&data, &["--verify"]);
    let page = text(&shown);
    assert_eq!(shown.status.code(), Some(1), "{page}");
    assert!(page.contains(&format!("  {} at byte ", names[0])), "{page}");
    assert!(page.trim_end().ends_with("1 place is damaged"), "{page}");
    let found = json(&inspect(&data, &["--verify", "--json"]));
    let place = &found["damage"][0];
    assert!(place["offset"].as_u64().unwrap() <= middle as u64, "{place}");
    assert_eq!((&place["file"], &place["kind"]), (&Value::from(names[0]), &Value::from("bytes")));
    assert_eq!(found["segments"][0]["lost"], 1, "{found:#}");
}

#[test]
fn a_broker_at_work_is_looked_at_and_goes_on() {
    let broker = start();
    let load = Load::start(vec![broker.amqp()], "work");
    let lock = std::fs::read(broker.settings.data.join("lock")).unwrap();
    for options in [&["--json"][..], &["--verify", "--json"]].into_iter().cycle().take(10) {
        load.await_more(200);
        let shown = inspect(&broker.settings.data, options);
        let found = json(&shown);
        assert_eq!((shown.status.code(), &found["damage"]), (Some(0), &Value::Array(Vec::new())), "{found:#}");
        assert_eq!(found["used_by"]["pid"], broker.pid(), "{found:#}");
    }
    assert!(text(&inspect(&broker.settings.data, &[])).contains(&format!("in use by process {}", broker.pid())));
    assert_eq!(std::fs::read(broker.settings.data.join("lock")).unwrap(), lock);
    load.await_more(200);
    let published = load.stop();
    published.check(&drain_numbers(&mut Client::guest(broker.amqp()), "work"));
}

#[test]
fn what_cannot_be_judged_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = dir.path().join("nothing");
    let cases: [(&Path, &[&str], &str); 4] = [
        (&nothing, &[], "there is no such directory"),
        (dir.path(), &["--verify"], "it is empty"),
        (dir.path(), &["--json"], "is not the data directory of a broker"),
        (dir.path(), &["--nonsense"], "--nonsense"),
    ];
    for (path, options, expected) in cases {
        let shown = inspect(path, options);
        let said = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert_eq!(shown.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && shown.stdout.is_empty(), "{said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
}
