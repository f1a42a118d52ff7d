//! Clients over TLS: the same broker as without, known by their certificates where they show one, and served with a new
//! certificate of the broker's once its files have changed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use understudy_protocol::{ClientConfig, ClientEnd, connection};

use crate::bad_clients::cheap_hash;
use crate::harness::raw::{Answer, Raw, method};
use crate::harness::tls::{Amqps, Authority, Pair, connect_tls, connect_tls_by};
use crate::harness::{Client, Cluster, PATIENCE, Settings, Single, Stream, await_true, short};

struct Served {
    broker: Single,
    authority: Authority,
    amqps: Amqps,
}

/// A broker with TLS beside plain AMQP, whose users are guest and, by certificate or with the password `secret`, orders.
fn serve(change: impl FnOnce(&mut Settings)) -> Served {
    let authority = Authority::new();
    let mut amqps = None;
    let broker = Single::start_with(|settings| {
        let pair = authority.issue("broker", 30);
        amqps = Some(Amqps::give(settings, settings.data.with_file_name("amqps"), &authority, &pair));
        settings.users_file = Some(users(settings));
        change(settings);
    });
    Served { broker, authority, amqps: amqps.unwrap() }
}

fn users(settings: &Settings) -> std::path::PathBuf {
    // One for each broker: another may be reading its own already.
    let file = settings.data.with_file_name(format!("{}-users", settings.name));
    let line = |(name, password): (&str, &str)| format!("{name}:{}\n", cheap_hash(password));
    let lines = [("guest", "guest"), ("orders", "secret"), ("CN=orders", "x"), ("localhost", "x")].map(line);
    std::fs::write(&file, lines.concat()).unwrap();
    file
}

impl Served {
    fn connect(&self, pair: Option<&Pair>, external: bool) -> Result<Client, ClientEnd> {
        let stream = connect_tls(self.amqps.address, &self.authority, pair).expect("a handshake");
        Client::over(stream, ClientConfig { external, heartbeat_seconds: 0, ..Default::default() })
    }

    /// The broker's certificate ends then, as a new client sees it.
    fn serial(&self) -> Vec<u8> {
        let stream = connect_tls(self.amqps.address, &self.authority, None).expect("a handshake");
        stream.conn.peer_certificates().expect("the broker's certificate")[0].to_vec()
    }

    fn mechanisms(&self, stream: impl Stream + 'static) -> String {
        let mut raw = Raw::over(stream);
        raw.send(b"AMQP\0\0\x09\x01");
        raw.start().mechanisms.escape_ascii().to_string()
    }
}

#[test]
fn a_client_over_tls_sees_the_same_broker() {
    let served = serve(|_| {});
    let mut plain = Client::guest(served.broker.amqp());
    let mut client = served.connect(None, false).unwrap();
    client.declare("work").unwrap();
    client.select_confirms();
    for size in [0, 1, 5_000, 100_000, 900_000, 3 << 20] {
        let body: Vec<_> = (0..size).map(|at: usize| (at % 251) as u8).collect();
        client.publish_confirmed("work", body.clone()).unwrap();
        assert_eq!(plain.get("work", true).unwrap().body.to_contiguous(), body);
        plain.publish("work", body.clone());
        await_true("it is there", || plain.declare("work").unwrap().message_count == 1);
        assert_eq!(client.get("work", true).unwrap().body.to_contiguous(), body);
    }
    client.close();
    served.broker.await_metric("connections", 1);
    assert_eq!(served.broker.metric("amqps_failed_handshakes_total"), Some(0));
}

#[test]
fn external_is_offered_with_a_certificate_and_its_name_is_the_user() {
    let served = serve(|_| {});
    let orders = served.authority.issue("orders", 30);
    let without = "PLAIN AMQPLAIN";
    let connect = |pair| connect_tls(served.amqps.address, &served.authority, pair).unwrap();
    assert_eq!(served.mechanisms(TcpStream::connect(served.broker.amqp()).unwrap()), without);
    assert_eq!(served.mechanisms(connect(None)), without);
    assert_eq!(served.mechanisms(connect(Some(&orders))), format!("{without} EXTERNAL"));
    let mut client = served.connect(Some(&orders), true).unwrap();
    client.declare("work").unwrap();
    // A certificate does not keep anybody from coming with a password.
    served.connect(Some(&orders), false).unwrap();

    let refused = |end: ClientEnd, text: &str| {
        let ClientEnd::ByServer { code: 403, text: said } = &end else { panic!("{end}") };
        assert!(said.to_string().starts_with(text), "{said}");
    };
    let nobody = served.authority.issue("nobody", 30);
    let login = "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL";
    refused(served.connect(Some(&nobody), true).err().unwrap(), login);
    // Who has shown no certificate cannot log in by one, over TLS or not.
    let unknown = "ACCESS_REFUSED - unknown authentication mechanism \"EXTERNAL\"";
    refused(served.connect(None, true).err().unwrap(), unknown);
    let plain = Client::connect(served.broker.amqp(), ClientConfig { external: true, ..Default::default() });
    refused(plain.err().unwrap(), unknown);
}

#[test]
fn a_certificate_that_is_not_the_authoritys_or_has_ended_is_no_handshake() {
    let served = serve(|_| {});
    let wrong = [Authority::new().issue("orders", 30), served.authority.issue("orders", 0)];
    for pair in &wrong {
        // With TLS 1.3 the client learns of it by its first read.
        let refused = connect_tls(served.amqps.address, &served.authority, Some(pair)).and_then(|mut stream| {
            stream.write_all(b"AMQP\0\0\x09\x01")?;
            stream.read(&mut [0])
        });
        let refused = refused.expect_err("a refusal");
        assert!(refused.kind() != ErrorKind::WouldBlock, "{refused}");
    }
    served.broker.await_metric("amqps_failed_handshakes_total", 2);
    served.connect(None, false).unwrap();
}

#[test]
fn certificates_versions_and_mechanisms_can_be_insisted_on() {
    let served = serve(|settings| {
        settings.tls_only = true;
        settings.extra.extend(
            "--amqps-client-certificates required --amqps-min-version 1.3 --amqps-login-from distinguished-name --sasl-mechanisms EXTERNAL"
                .split(' ')
                .map(String::from),
        );
    });
    let orders = served.authority.issue("orders", 30);
    assert!(TcpStream::connect(served.broker.amqp()).is_err(), "there is no plain port");
    let tls12 = connect_tls_by(served.amqps.address, &served.authority, Some(&orders), &[&rustls::version::TLS12]);
    assert!(tls12.is_err());
    let without = connect_tls(served.amqps.address, &served.authority, None);
    assert!(without.and_then(|mut stream| stream.read_exact(&mut [0])).is_err());
    served.connect(Some(&orders), true).unwrap().declare("work").unwrap();
    let by_password = served.connect(Some(&orders), false).err().unwrap();
    assert!(by_password.to_string().contains("unknown authentication mechanism"), "{by_password}");
}

#[test]
fn mechanisms_may_be_kept_for_tls() {
    let served = serve(|settings| settings.extra.extend(["--sasl-tls-only".into(), "plain".into()]));
    assert_eq!(served.mechanisms(TcpStream::connect(served.broker.amqp()).unwrap()), "AMQPLAIN");
    let refused = Client::connect(served.broker.amqp(), ClientConfig::default()).err().unwrap();
    assert!(refused.to_string().contains("unknown authentication mechanism \"PLAIN\""), "{refused}");
    served.connect(None, false).unwrap();
}

/// As Kubernetes does it: the files are links into a directory that is a link itself, and that one is swapped.
#[test]
fn a_new_certificate_is_used_once_it_is_whole_and_connections_stay() {
    let served = serve(|_| {});
    let mut before = served.connect(None, false).unwrap();
    before.declare("work").unwrap();
    let first = served.serial();

    // Half of it: the certificate is there, its key is not yet. Both kinds of half, and nonsense.
    let next = served.authority.issue("broker", 60);
    let key = std::fs::read_to_string(served.amqps.directory().join("tls.key")).unwrap();
    for (certificate, key, complaint) in [
        (next.certificate.as_str(), key.as_str(), "does not go with"),
        (&next.certificate[..next.certificate.len() / 2], &next.key, "holds"),
        (&next.certificate, "", "holds no private key"),
    ] {
        served.amqps.write(certificate, key);
        served.broker.await_metric("amqps_certificate_unusable", 1);
        served.broker.await_log(complaint);
        assert_eq!(served.serial(), first);
    }
    let complaints = served.broker.log().matches("cannot be used, the one before goes on").count();

    served.amqps.write(&next.certificate, &next.key);
    served.broker.await_metric("amqps_certificate_not_after_seconds", next.not_after.unsigned_abs());
    assert_eq!(served.broker.metric("amqps_certificate_unusable"), Some(0));
    assert_ne!(served.serial(), first);
    let log = served.broker.log();
    assert_eq!(log.matches("cannot be used, the one before goes on").count(), complaints);
    assert!(complaints <= 3, "each is told once:\n{log}");

    let last = served.authority.issue("broker", 90);
    let directory = served.amqps.directory();
    let (data, fresh) = (directory.join("..data"), directory.join("..2026"));
    std::fs::create_dir(&fresh).unwrap();
    for (file, text) in
        [("tls.crt", &last.certificate), ("tls.key", &last.key), ("ca.crt", &served.authority.certificate)]
    {
        std::fs::write(fresh.join(file), text).unwrap();
        symlink(fresh.join(file), directory.join("link")).unwrap();
        std::fs::rename(directory.join("link"), directory.join(file)).unwrap();
    }
    symlink(&fresh, &data).unwrap();
    served.broker.await_metric("amqps_certificate_not_after_seconds", last.not_after.unsigned_abs());
    before.declare("work").unwrap();

    // So are the authorities of clients.
    let others = Authority::new();
    std::fs::write(fresh.join("ca.crt"), &others.certificate).unwrap();
    let theirs = others.issue("orders", 30);
    await_true("a client of the new authority is let in", || {
        let stream = connect_tls(served.amqps.address, &served.authority, Some(&theirs));
        let config = ClientConfig { external: true, heartbeat_seconds: 0, ..Default::default() };
        stream.is_ok_and(|stream| Client::over(stream, config).is_ok())
    });
    let ours = served.authority.issue("orders", 30);
    let refused = connect_tls(served.amqps.address, &served.authority, Some(&ours))
        .and_then(|mut stream| stream.read_exact(&mut [0]));
    assert!(refused.is_err());
    served.connect(None, false).unwrap();
    before.declare("work").unwrap();
}

#[test]
fn a_broker_without_a_usable_certificate_does_not_start() {
    let mut served = serve(|_| {});
    let mut settings = served.broker.settings.clone();
    served.broker.kill();
    served.amqps.write("nonsense", "nonsense");
    settings.log = settings.log.with_file_name("again.log");
    let error = settings.fails();
    assert!(error.contains("--amqps-listen needs a certificate and its key: ") && error.contains("tls.crt"), "{error}");
}

#[test]
fn a_client_over_tls_at_a_backup_is_known_to_the_primary() {
    let authority = Authority::new();
    let pair = authority.issue("broker", 30);
    let addresses = std::sync::Mutex::new(Vec::new());
    let cluster = Cluster::start_with(|settings| {
        settings.users_file = Some(users(settings));
        let directory = settings.data.with_file_name(format!("{}-amqps", settings.name));
        addresses.lock().unwrap().push(Amqps::give(settings, directory, &authority, &pair).address);
    });
    let addresses = addresses.into_inner().unwrap();
    let [backup, _] = cluster.backups();
    let orders = authority.issue("orders", 30);
    let connect = |pair, external| {
        let stream = connect_tls(addresses[backup], &authority, pair).unwrap();
        Client::over(stream, ClientConfig { external, heartbeat_seconds: 0, ..Default::default() })
    };
    let mut client = connect(Some(&orders), true).unwrap();
    client.declare("work").unwrap();
    client.select_confirms();
    let large = vec![42; 3 << 20];
    client.publish_confirmed("work", large.clone()).unwrap();
    assert_eq!(client.get("work", true).unwrap().body.to_contiguous(), large);
    assert!(connect(None, true).is_err());
    assert_eq!(cluster.brokers[backup].metric("connections"), Some(0));
    client.close();
    connect(None, false).unwrap();

    // The log's users log in by certificates too, and may do what they may.
    let recorded = authority.issue("recorded", 30);
    assert!(connect(Some(&recorded), true).is_err(), "there is no such user yet");
    cluster.understudy_with(&["user", "add", "recorded"], "secret").unwrap();
    let refused = connect(Some(&recorded), true).err().unwrap();
    assert!(refused.to_string().contains("NOT_ALLOWED"), "{refused}");
    cluster.understudy(&["permission", "set", "recorded", "^work$", ".*", ".*"]).unwrap();
    let mut client = connect(Some(&recorded), true).unwrap();
    client.declare("work").unwrap();
    assert_eq!(client.declare("other").unwrap_err().code(), 403);

    // Without TLS the same backup vouches for nobody.
    let config = ClientConfig { external: true, ..Default::default() };
    let refused = Client::connect(cluster.brokers[backup].amqp(), config).err().unwrap();
    assert!(refused.to_string().contains("unknown authentication mechanism"), "{refused}");
    let log = cluster.brokers[cluster.primary()].log();
    assert!(log.contains("(via test-"), "the primary knows where refused clients come from:\n{log}");
}

#[test]
fn garbage_and_silence_instead_of_a_handshake_hurt_nobody() {
    let served = serve(|_| {});
    let mut good = served.connect(None, false).unwrap();
    good.declare("calm").unwrap();
    good.select_confirms();
    // More than there are turns: the good ones wait for theirs, and the silent ones have less time then.
    let silent: Vec<_> = (0..1100).map(|_| TcpStream::connect(served.amqps.address).unwrap()).collect();
    let hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[7; 40]].concat();
    let begun: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(served.amqps.address).unwrap();
            stream.write_all(&hello).unwrap();
            stream
        })
        .collect();
    let answer_to = |octets: &[u8]| {
        let mut stream = TcpStream::connect(served.amqps.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        _ = stream.write_all(octets);
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer); // a reset is an end too
        answer
    };
    for octets in [&b"AMQP\0\0\x09\x01"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000], &[0x16; 5000]] {
        let answer = answer_to(octets);
        assert!(answer.is_empty() || answer[0] == 0x15, "an alert at most: {answer:?}");
        good.publish_confirmed("calm", "x").unwrap();
    }
    for _ in 0..10 {
        served.connect(None, false).unwrap().close();
    }
    good.publish_confirmed("calm", "x").unwrap();
    // Each is let go: none of them sent anything more.
    for mut stream in silent.into_iter().chain(begun) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        assert!(!matches!(stream.read_to_end(&mut rest), Err(error) if error.kind() == ErrorKind::WouldBlock));
    }
    served.broker.await_metric("amqps_failed_handshakes_total", 1404);
    let told = served.broker.log().matches("no TLS with a client").count();
    assert!((1..=10).contains(&told), "{told} lines");
}

/// Half an AMQP session over TLS, cut off without a word: as without TLS.
#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let served = serve(|_| {});
    let mut raw = Raw::over(connect_tls(served.amqps.address, &served.authority, None).unwrap());
    raw.send(&Raw::login());
    raw.send(&method(0, connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 }));
    raw.send(&method(0, connection::Open { virtual_host: short("/") }));
    raw.await_octets(&method(0, connection::OpenOk {}));
    served.broker.await_metric("connections", 1);
    raw.hang_up();
    assert_eq!(raw.close(), Answer::Dropped);
    served.broker.await_metric("connections", 0);
}
