//! A machine that is not as it should be: the broker does not start, says in one line what is wrong and what to do about it,
//! and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::durability::last_segment;
use crate::harness::{Broker, Client, Cluster, Places, Settings, Single, await_true, loopback, write_certificates};

/// A directory with certificates, and the settings of a broker that was never started there.
struct Place {
    root: TempDir,
    settings: Settings,
    _places: Places,
}

fn place() -> Place {
    let places = Places::take(1);
    let root = tempfile::tempdir().unwrap();
    write_certificates(&root.path().join("tls"));
    let settings = Settings::single(root.path());
    Place { root, settings, _places: places }
}

/// A directory that a broker has worked in: 200 confirmed messages of 1 KiB, then `kill -9`.
fn used_place() -> (Single, PathBuf) {
    let mut broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    (0..200).for_each(|number: u32| client.publish("work", number.to_string().repeat(300)));
    client.await_confirms().unwrap();
    broker.kill();
    let data = broker.settings.data.clone();
    (broker, data)
}

/// Every file with its content, but for the lock, which holds the process id of whoever tried last.
fn snapshot(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let files = entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
    files.filter(|(name, _)| name != "lock").collect()
}

/// The broker does not start and changes nothing in `unchanged`; returns its error.
#[track_caller]
fn fails(settings: &Settings, unchanged: &Path, words: &[&str]) {
    let before = snapshot(unchanged);
    let error = settings.fails();
    for word in words {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    let after = snapshot(unchanged);
    assert!(before == after, "files changed: {:?}, then {:?}", before.keys(), after.keys());
}

#[test]
fn a_file_in_the_place_of_the_data_directory() {
    let Place { root, settings, _places } = &place();
    fs::write(&settings.data, "not a directory").unwrap();
    let data = settings.data.display().to_string();
    fails(settings, &root.path().join("tls"), &[&data, "it must be a directory that user"]);
    assert_eq!(fs::read_to_string(&settings.data).unwrap(), "not a directory");
}

#[test]
fn a_data_directory_without_permission() {
    let Place { root, mut settings, _places } = place();
    if rustix::process::getuid().is_root() {
        // Root without the right to overlook permissions is denied like anybody else.
        settings.through = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"].map(String::from).into();
    }
    fs::create_dir(&settings.data).unwrap();
    for mode in [0o000, 0o500] {
        fs::set_permissions(&settings.data, fs::Permissions::from_mode(mode)).unwrap();
        let data = settings.data.display().to_string();
        fails(&settings, &root.path().join("tls"), &[&data, "Permission denied", "it must be a directory that user"]);
    }
    fs::set_permissions(&settings.data, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_directory_that_is_not_ours() {
    let Place { settings, .. } = &place();
    fs::create_dir(&settings.data).unwrap();
    fs::write(settings.data.join("photo.jpg"), "dear to somebody").unwrap();
    fails(
        settings,
        &settings.data,
        &["holds photo.jpg, which is not Understudy's; give the broker an empty directory"],
    );
}

#[test]
fn a_log_without_its_store_file() {
    let (broker, data) = used_place();
    fs::remove_file(data.join("store")).unwrap();
    fails(&broker.settings, &data, &["holds a log but no file `store`", "restore that file"]);
}

#[test]
fn damage_in_the_middle_of_the_log() {
    let (broker, data) = used_place();
    let segment = last_segment(&data);
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    fails(
        &broker.settings,
        &data,
        &["the log is damaged", name, "at byte", "nothing was skipped", "empty the directory"],
    );
    // Mended, it is as it was.
    bytes[middle] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let broker = broker.settings.start();
    broker.await_ready();
    assert_eq!(Client::guest(broker.amqp()).declare("work").unwrap().message_count, 200);
}

#[test]
fn a_segment_that_is_missing() {
    let (broker, data) = used_place();
    fs::remove_file(last_segment(&data)).unwrap();
    fails(&broker.settings, &data, &["the log is damaged", "missing"]);
}

#[test]
fn a_newer_format() {
    let (broker, data) = used_place();
    let segment = last_segment(&data);
    let old = fs::read(&segment).unwrap();
    let mut newer = old.clone();
    newer[12] = 9;
    let crc = crc32c::crc32c(&newer[12..64]);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    fs::write(&segment, newer).unwrap();
    fails(&broker.settings, &data, &["is of format 9, this version knows 1; run the version that wrote it"]);
    fs::write(&segment, old).unwrap();

    let store = data.join("store");
    let text = fs::read_to_string(&store).unwrap();
    let lines = text[..text.find("checksum").unwrap()].replace("format 1", "format 9");
    fs::write(&store, format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()))).unwrap();
    fails(&broker.settings, &data, &["store is of format 9, this version knows 1; run the version that wrote it"]);
}

#[test]
fn two_brokers_on_one_directory() {
    let first = Single::start();
    let mut second = Settings { data: first.settings.data.clone(), ..Settings::single(first.root.path()) };
    second.log = first.root.path().join("second.log");
    second.lease = first.root.path().join("other-lease");
    let error = second.fails();
    let words = format!("another broker (process {}) uses the data directory", first.pid());
    assert!(error.contains(&words) && error.contains("give this one another directory"), "{error}");
    Client::guest(first.amqp()).declare("still here").unwrap();
}

#[test]
fn ports_in_use() {
    let Place { root, settings, _places } = &place();
    let taken = std::net::TcpListener::bind(loopback(0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    for (option, settings) in [
        ("--amqp-listen", Settings { amqp: port, ..settings.clone() }),
        ("--grpc-listen", Settings { grpc: port, ..settings.clone() }),
        ("--http-listen", Settings { http: port, ..settings.clone() }),
    ] {
        let words = format!("cannot listen on 127.0.0.1:{port}; choose another address with {option}");
        fails(&settings, &root.path().join("tls"), &[&words, "in use"]);
    }
}

#[test]
fn certificates_that_are_missing_or_garbled() {
    let Place { root, settings, _places } = &place();
    let tls = root.path().join("tls");
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        let good = fs::read(tls.join(file)).unwrap();
        let path = tls.join(file).display().to_string();
        fs::remove_file(tls.join(file)).unwrap();
        fails(settings, &tls, &[&path, "No such file", "--tls-dir must hold ca.crt, tls.crt and tls.key"]);
        let cut = good[..good.len() / 2].to_vec();
        let wrong = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
        for garbled in [b"nonsense".to_vec(), Vec::new(), cut, vec![0xff; 100], wrong.into()] {
            fs::write(tls.join(file), garbled).unwrap();
            fails(settings, &tls, &["/tls/", "--tls-dir must hold ca.crt, tls.crt and tls.key"]);
        }
        fs::write(tls.join(file), good).unwrap();
        assert!(!settings.data.exists(), "the data directory was touched");
    }
    // A key of another certificate.
    write_certificates(&root.path().join("other"));
    fs::copy(root.path().join("other").join("tls.key"), tls.join("tls.key")).unwrap();
    fails(settings, &tls, &["tls.key", "--tls-dir must hold ca.crt, tls.crt and tls.key"]);
}

#[test]
fn a_replica_with_a_certificate_of_another_authority_stays_outside_and_says_why() {
    let mut cluster = Cluster::start();
    let [stranger, other] = cluster.backups();
    write_certificates(&cluster.root.path().join("foreign"));
    let foreign = cluster.root.path().join("foreign");
    let ours = std::mem::replace(&mut cluster.brokers[stranger].settings.tls, foreign);
    cluster.brokers[stranger].restart();
    cluster.brokers[stranger].await_log("certificate");
    let primary = cluster.primary();
    cluster.await_set(&[primary, other]);
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    assert!(!cluster.brokers[stranger].is_ready());
    let log = cluster.brokers[stranger].log();
    let line = log.lines().find(|line| line.contains("certificate")).unwrap();
    assert!(line.contains(" WARN ") && line.contains(&cluster.name(primary)) && line.contains("--tls-dir"), "{line}");
    cluster.brokers[stranger].settings.tls = ours;
    cluster.brokers[stranger].restart();
    cluster.await_all_in_sync();
}

#[test]
fn a_users_file_that_makes_no_sense() {
    let Place { root, settings, _places } = place();
    let users = root.path().join("users");
    let settings = Settings { users_file: Some(users.clone()), ..settings };
    let path = users.display().to_string();
    let tls = root.path().join("tls");
    fails(&settings, &tls, &["cannot read the users file", &path, "No such file"]);
    for (text, words) in [
        ("anna", "line 1: no colon; each line is name:hash with the hash in PHC form"),
        ("# people\nanna:secret\n", "line 2:"),
        ("", "names no user, so nobody could log in"),
    ] {
        fs::write(&users, text).unwrap();
        fails(&settings, &tls, &[&path, words]);
        assert!(!settings.data.exists(), "the data directory was touched");
    }
    fs::write(&users, [0xff, 0xfe]).unwrap();
    fails(&settings, &tls, &["cannot read the users file", &path]);
}

#[test]
fn a_garbled_lease_is_left_alone_and_nobody_serves_until_it_is_gone() {
    let Place { settings, .. } = &place();
    fs::create_dir(&settings.lease).unwrap();
    let file = settings.lease.join("lease.json");
    fs::write(&file, "{ nonsense").unwrap();
    let broker: Broker = settings.start();
    broker.await_log("lease.json");
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("lease.json")).unwrap();
    assert!(line.contains("WARN") && line.contains("cannot be watched"), "{line}");
    assert!(!broker.is_ready());
    assert_eq!(fs::read_to_string(&file).unwrap(), "{ nonsense");
    fs::remove_file(&file).unwrap();
    broker.await_ready();
}

#[test]
fn a_running_primary_goes_on_past_a_garbled_lease() {
    let broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    let file = broker.settings.lease.join("lease.json");
    let good = fs::read(&file).unwrap();
    fs::write(&file, "{ nonsense").unwrap();
    broker.await_log("store refuses a change");
    (0..20).for_each(|number: u32| client.publish_confirmed("work", number.to_string()).unwrap());
    fs::write(&file, good).unwrap();
    let renewed = || fs::metadata(&file).unwrap().modified().unwrap();
    let restored = renewed();
    await_true("the Lease is renewed again", || renewed() > restored);
    client.publish_confirmed("work", "20").unwrap();
    assert_eq!(client.declare("work").unwrap().message_count, 21);
}

#[test]
fn a_command_line_that_makes_no_sense() {
    let Place { root, settings, _places } = place();
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut changed = settings.clone();
        change(&mut changed);
        changed
    };
    let tls = root.path().join("tls");
    fails(
        &with(&|settings| settings.min_in_sync = 2),
        &tls,
        &["--min-in-sync is 2; it must be between 1 and --replicas"],
    );
    fails(&with(&|settings| settings.name = "other".into()), &tls, &["--peers does not list this replica, other"]);
    fails(
        &with(&|settings| settings.backup_timeout_ms = 1),
        &tls,
        &["--backup-timeout-ms is 1 ms; it must be between 50"],
    );
    let size = |settings: &mut Settings| settings.extra = ["--max-message-size", "0"].map(String::from).into();
    fails(&with(&size), &tls, &["--max-message-size is 0; it must be between 1 and"]);
}
