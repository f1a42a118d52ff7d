//! A local cluster, asked: the brokers are found by the directory's cluster file, and each says its state once.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use understudy_proto as proto;
use understudy_record::Member;

use super::summary::{CatchUp, Replica, Summary};
#[cfg(test)]
use super::tree::View;
use crate::cluster_file::{BrokerEntry, ClusterFile};
use crate::control::{self, Tls};
use crate::dev::role_name;

/// A broker on loopback answers in milliseconds or, when its process is stopped, not at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// One answer is all that is read.
const INTERVAL_MS: u32 = 1000;

pub(crate) async fn summary(dir: &Path) -> anyhow::Result<Summary> {
    let file = ClusterFile::read(dir)?;
    let tls = Tls::read(&file.tls_dir)?;
    let answers = ask_all(&file, &tls).await;
    Ok(summarize(&file, answers))
}

/// What each broker of the file says, in its order, or why it says nothing.
pub(crate) async fn ask_all(file: &ClusterFile, tls: &Tls) -> Vec<Result<proto::Status, String>> {
    join_all(file.brokers.iter().map(|broker| ask(broker, tls))).await
}

async fn ask(broker: &BrokerEntry, tls: &Tls) -> Result<proto::Status, String> {
    let answer = async {
        let mut client = control::client(broker.grpc, tls).map_err(|error| error.to_string())?;
        let request = proto::WatchRequest { interval_ms: INTERVAL_MS };
        let stream = client.watch(request).await.map_err(|error| said(&error))?;
        stream.into_inner().message().await.map_err(|error| said(&error))?.ok_or_else(|| "it said nothing".to_string())
    };
    tokio::time::timeout(ANSWER_WITHIN, answer)
        .await
        .unwrap_or_else(|_| Err(format!("no answer from {} within {ANSWER_WITHIN:?}", broker.grpc)))
}

fn said(error: &tonic::Status) -> String {
    format!("does not answer: {}", error.message())
}

/// The primary is the broker of the highest epoch that says it is one; what it says of the set is what is shown.
fn summarize(file: &ClusterFile, answers: Vec<Result<proto::Status, String>>) -> Summary {
    let primary = answers
        .iter()
        .zip(&file.brokers)
        .filter_map(|(answer, broker)| Some((answer.as_ref().ok()?, broker)))
        .filter(|(status, _)| status.role() == proto::Role::Primary)
        .max_by_key(|(status, _)| status.epoch);
    let in_sync: Vec<String> = primary.map(|(status, _)| names(&status.in_sync)).unwrap_or_default();
    let replicas = file.brokers.iter().zip(&answers).map(|(broker, answer)| {
        let in_sync = in_sync.contains(&broker.name);
        let amqp = Some(broker.amqp.to_string());
        match answer {
            Ok(status) => Replica { amqp, ..replica(broker, status, in_sync, primary.map(|(primary, _)| primary)) },
            Err(message) => Replica {
                name: broker.name.clone(),
                role: "unreachable".into(),
                in_sync,
                amqp,
                message: Some(message.clone()),
                ..Default::default()
            },
        }
    });
    Summary {
        cluster: file.cluster.clone(),
        primary: primary.map(|(_, broker)| broker.name.clone()),
        epoch: primary.map(|(status, _)| status.epoch),
        cluster_version: primary.map(|(status, _)| status.cluster_version).filter(|version| *version > 0),
        confirms_held: primary.and_then(|(status, _)| not_empty(&status.confirms_held)),
        publishers_blocked: primary.and_then(|(status, _)| not_empty(&status.publishers_blocked)),
        replicas: replicas.collect(),
        in_sync,
        ..Summary::default()
    }
}

fn replica(broker: &BrokerEntry, status: &proto::Status, in_sync: bool, primary: Option<&proto::Status>) -> Replica {
    let last_index = |status: &proto::Status| status.last.map(|last| last.index);
    let lag = primary.and_then(last_index).map(|last| last.saturating_sub(status.durable));
    Replica {
        name: broker.name.clone(),
        role: role_name(status.role()).into(),
        in_sync,
        position: status.last.map(|last| format!("{}:{}", last.epoch, last.index)),
        lag: lag.filter(|_| status.role() != proto::Role::Primary),
        catch_up: status.catch_up.map(|catch_up| CatchUp {
            queues_done: catch_up.queues_done,
            queues: catch_up.queues,
            messages_done: catch_up.messages_done,
            messages: catch_up.messages,
            bytes_done: catch_up.bytes_done,
            bytes: catch_up.bytes,
            bytes_per_second: catch_up.bytes_per_second,
            remaining_seconds: catch_up.remaining_seconds,
        }),
        amqp: None,
        message: not_empty(&status.message),
        alarms: status.alarms.map(|alarms| alarms.describe(&broker.name)).unwrap_or_default(),
    }
}

/// Members by name; one that is no member is shown as it is.
fn names(members: &[String]) -> Vec<String> {
    let name =
        |member: &String| member.parse::<Member>().map_or_else(|_| member.clone(), |member| member.name.to_string());
    members.iter().map(name).collect()
}

fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const STORE: &str = "00000000000000000000000000000abc";

    fn file() -> ClusterFile {
        let broker = |n: u16| BrokerEntry {
            name: format!("dev-{n}"),
            pid: Some(1),
            amqp: ([127, 0, 0, 1], 5672 + n).into(),
            grpc: ([127, 0, 0, 1], 7672 + n).into(),
            http: ([127, 0, 0, 1], 15692 + n).into(),
            data_dir: "data".into(),
            log: "log".into(),
        };
        ClusterFile {
            pid: 1,
            cluster: "dev".into(),
            min_in_sync: 2,
            durability: "fsync".into(),
            tls_dir: "tls".into(),
            lease_dir: "lease".into(),
            brokers: (0..3).map(broker).collect(),
        }
    }

    fn status(role: proto::Role, epoch: u64, durable: u64) -> proto::Status {
        proto::Status {
            role: role.into(),
            epoch,
            last: Some(proto::Position { epoch, index: durable }),
            durable,
            ..Default::default()
        }
    }

    #[test]
    fn the_primary_of_the_highest_epoch_speaks_for_the_cluster() {
        let demoted_unawares = status(proto::Role::Primary, 4, 90);
        let primary = proto::Status {
            in_sync: vec![format!("dev-1/{STORE}"), "garbled".into()],
            confirms_held: "1 of 2 in sync".into(),
            cluster_version: 2,
            ..status(proto::Role::Primary, 5, 120)
        };
        let summary = summarize(&file(), vec![Ok(demoted_unawares), Ok(primary), Err("does not answer".into())]);
        expect![[r#"
            ! Confirms are held: 1 of 2 in sync

            dev  primary dev-1, epoch 5, version 2, 2 of 3 in sync, in sync too: garbled
            ├── dev-0  primary      not in sync  at 4:90   127.0.0.1:5672
            ├── dev-1  primary      in sync      at 5:120  127.0.0.1:5673
            └── dev-2  unreachable  not in sync            127.0.0.1:5674
                       does not answer
        "#]]
        .assert_eq(&summary.to_text(&View::plain()));
    }

    #[test]
    fn what_is_low_is_shown_and_what_it_leads_to() {
        let disk = Some(proto::Shortage { bytes: 80_000_000, watermark: 107_374_182 });
        let low = "dev-1 is low on disk: 80 MB free, watermark 107 MB";
        let primary = proto::Status { publishers_blocked: low.into(), ..status(proto::Role::Primary, 5, 120) };
        let backup =
            proto::Status { alarms: Some(proto::Alarms { memory: None, disk }), ..status(proto::Role::Backup, 5, 120) };
        let summary = summarize(&file(), vec![Ok(primary), Ok(backup), Ok(status(proto::Role::Backup, 5, 120))]);
        expect![[r#"
            ! Publishers are blocked: dev-1 is low on disk: 80 MB free, watermark 107 MB

            dev  primary dev-0, epoch 5, 0 of 3 in sync
            ├── dev-0  primary  not in sync  at 5:120         127.0.0.1:5672
            ├── dev-1  backup   not in sync  at 5:120  lag 0  127.0.0.1:5673
            │          dev-1 is low on disk: 80 MB free, watermark 107 MB
            └── dev-2  backup   not in sync  at 5:120  lag 0  127.0.0.1:5674
        "#]]
        .assert_eq(&summary.to_text(&View::plain()));
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["publishersBlocked"], &json["replicas"][1]["alarms"][0]), (&low.into(), &low.into()));
    }

    #[tokio::test]
    async fn a_directory_without_a_cluster_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = summary(dir.path()).await.unwrap_err().to_string();
        assert!(error.contains("understudy dev --dir"), "{error}");
    }
}
