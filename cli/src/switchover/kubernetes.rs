//! A cluster in Kubernetes: the operator is asked by an annotation, and answers in the status.

use std::time::Duration;

use anyhow::{Context, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use understudy_crds::{FORCE_PRIMARY_ANNOTATION, SWITCHOVER_ANNOTATION};

use super::{Consent, Outcome, of_epoch};
use crate::kubernetes::{Kubernetes, Seen};

/// An operator answers within a second; one whose failover is under way gives it half a minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub(super) async fn switchover(
    kubernetes: &Kubernetes,
    name: Option<&str>,
    to: Option<&str>,
) -> anyhow::Result<Outcome> {
    let seen = kubernetes.cluster(name).await?;
    let to = match to {
        Some(to) => to.to_owned(),
        None => furthest_backup(&seen).with_context(|| format!("no backup of {} is in sync", seen.name()))?,
    };
    if seen.serves(&to) {
        return Ok(Outcome::already(&to, seen.epoch()));
    }
    request(kubernetes, SWITCHOVER_ANNOTATION, &to, seen).await
}

pub(super) async fn force(
    kubernetes: &Kubernetes,
    name: Option<&str>,
    to: &str,
    consent: Consent,
) -> anyhow::Result<Outcome> {
    let seen = kubernetes.cluster(name).await?;
    if seen.serves(to) {
        return Ok(Outcome::already(to, seen.epoch()));
    }
    consent.ask(&what_may_be_lost(&seen, to))?;
    request(kubernetes, FORCE_PRIMARY_ANNOTATION, to, seen).await
}

async fn request(kubernetes: &Kubernetes, annotation: &str, to: &str, before: Seen) -> anyhow::Result<Outcome> {
    let (api, name) = (kubernetes.clusters(), before.name());
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: to } } }));
    api.patch(name, &PatchParams::default(), &patch).await.with_context(|| format!("{name} cannot be annotated"))?;
    let answered = async {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let seen = kubernetes.cluster(Some(name)).await?;
            let is_gone = seen.annotation(annotation).is_none();
            let answer = seen.status("lastSwitchover");
            if is_gone && answer != before.status("lastSwitchover") && answer["to"] == to {
                return anyhow::Ok((answer.clone(), seen.epoch()));
            }
        }
    };
    let (answer, epoch) = tokio::time::timeout(ANSWERED_WITHIN, answered).await.with_context(|| {
        format!(
            "nobody has answered within {} s: does the operator run? The request stands until `kubectl annotate \
             brokercluster {name} {annotation}-`",
            ANSWERED_WITHIN.as_secs()
        )
    })??;
    let message = answer["message"].as_str().unwrap_or_default().to_owned();
    ensure!(answer["outcome"] == "Done", "not handed over: {message}");
    let gap_ms = answer["gapMs"].as_u64();
    let message = format!("{message}{}", of_epoch(epoch).replace(" of epoch", "; epoch"));
    Ok(Outcome { primary: to.to_owned(), epoch, moved: true, gap_ms, message })
}

fn furthest_backup(seen: &Seen) -> Option<String> {
    let backups = seen.replicas().filter(|replica| replica["inSync"] == true && replica["role"] == "Backup");
    let furthest = backups.min_by_key(|replica| replica["lag"].as_u64().unwrap_or(u64::MAX))?;
    furthest["name"].as_str().map(str::to_owned)
}

/// By the status, which may be seconds old; the operator's event says it as of the election.
fn what_may_be_lost(seen: &Seen, pod: &str) -> String {
    let position = |replica: &Value| {
        let (epoch, index) = replica["position"].as_str()?.split_once(':')?;
        Some((epoch.parse::<u64>().ok()?, index.parse::<u64>().ok()?))
    };
    let own = seen.replicas().find(|replica| replica["name"] == pod).and_then(position);
    let Some(own) = own else {
        return format!("how far {pod} is is not known: everything that it lacks is lost");
    };
    let ahead: Vec<String> = seen
        .replicas()
        .filter_map(|replica| {
            let other = position(replica).filter(|other| *other > own)?;
            let more = other.1.saturating_sub(own.1);
            let at_least = if other.0 == own.0 { "" } else { "at least " };
            let name = replica["name"].as_str().unwrap_or_default();
            Some(format!("{name} has {at_least}{more} records more, up to {}:{}", other.0, other.1))
        })
        .collect();
    let unheard = seen.replicas().filter(|replica| replica["name"] != pod && position(replica).is_none());
    let unheard = unheard.filter_map(|replica| replica["name"].as_str());
    let unheard = unheard.map(|name| format!("what {name} has is not known"));
    let texts: Vec<String> = ahead.into_iter().chain(unheard).collect();
    let texts = if texts.is_empty() { "nothing that is known".to_owned() } else { texts.join("; ") };
    format!("{pod} would go on from {}:{}; what may be lost: {texts}", own.0, own.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;

    fn seen() -> Seen {
        let object = json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "orders"},
            "status": {
                "primary": "orders-0", "epoch": 4,
                "conditions": [{"type": "Ready", "status": "False"}, {"type": "Available", "status": "True"}],
                "replicaStatuses": [
                    {"name": "orders-0", "role": "Primary", "inSync": true, "position": "4:130"},
                    {"name": "orders-1", "role": "Backup", "inSync": true, "position": "4:120", "lag": 10},
                    {"name": "orders-2", "role": "Backup", "inSync": true, "position": "4:128", "lag": 2},
                    {"name": "orders-3", "role": "Idle", "inSync": false, "position": "3:90"},
                    {"name": "orders-4", "role": "Absent", "inSync": false},
                ],
            },
        });
        Seen::of(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn without_a_name_the_backup_that_is_furthest() {
        let seen = seen();
        assert_eq!(furthest_backup(&seen).as_deref(), Some("orders-2"));
        assert!(seen.serves("orders-0") && !seen.serves("orders-2"));
    }

    #[test]
    fn what_others_have_more_is_told_before_it_is_lost() {
        let text = what_may_be_lost(&seen(), "orders-3");
        for part in
            ["from 3:90", "orders-0 has at least 40 records more, up to 4:130", "what orders-4 has is not known"]
        {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(what_may_be_lost(&seen(), "orders-0").contains("what orders-4 has is not known"));
        assert!(what_may_be_lost(&seen(), "orders-4").contains("is not known"));
    }

    /// An operator that hands over, or refuses, as soon as it is asked.
    fn answer(outcome: &'static str) -> impl FnMut(&str, &mut Value) + Send {
        move |_, cluster| {
            let annotations = cluster["metadata"]["annotations"].as_object_mut().unwrap();
            let Some(to) = annotations.remove(SWITCHOVER_ANNOTATION) else { return };
            if outcome == "Done" {
                cluster["status"]["primary"] = to.clone();
            }
            let answer = json!({"to": to, "outcome": outcome, "message": "as asked", "gapMs": 12, "at": "now"});
            cluster["status"]["lastSwitchover"] = answer;
        }
    }

    #[tokio::test]
    async fn a_role_is_handed_over_once() {
        let api = FakeApi::with_cluster("orders");
        api.react(answer("Done"));
        let outcome = switchover(&api.kubernetes(), None, None).await.unwrap();
        assert_eq!((outcome.primary.as_str(), outcome.moved, outcome.gap_ms), ("orders-2", true, Some(12)));
        assert_eq!(api.first_not_granted(), None);
        assert_eq!(api.take_writes().len(), 1);
        let again = switchover(&api.kubernetes(), Some("orders"), Some("orders-2")).await.unwrap();
        assert!(!again.moved && again.message.contains("already"), "{}", again.message);
        assert_eq!(api.take_writes(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_and_a_silence_are_told() {
        let api = FakeApi::with_cluster("orders");
        let error = async |api: &FakeApi| {
            let outcome = switchover(&api.kubernetes(), None, Some("orders-1")).await;
            format!("{:#}", outcome.err().unwrap())
        };
        api.react(answer("Refused"));
        assert_eq!(error(&api).await, "not handed over: as asked");
        api.react(|_, _| {});
        let text = error(&api).await;
        assert!(
            text.contains("nobody has answered within 60 s") && text.contains("understudy.dev/switchover-"),
            "{text}"
        );
    }
}
