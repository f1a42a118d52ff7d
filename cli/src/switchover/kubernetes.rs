//! A cluster in Kubernetes: the operator is asked by an annotation, and answers in the status.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Consent, Outcome, of_epoch};
use crate::status::broker_clusters;

const SWITCHOVER_ANNOTATION: &str = "understudy.dev/switchover";
const FORCE_ANNOTATION: &str = "understudy.dev/force-primary";
/// An operator answers within a second; one whose failover is under way gives it half a minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The object, read leniently.
struct Seen {
    object: DynamicObject,
}

pub(super) async fn switchover(namespace: Option<&str>, name: &str, to: Option<&str>) -> anyhow::Result<Outcome> {
    let (api, cluster) = broker_clusters(namespace).await?;
    let seen = Seen::read(&api, name).await?;
    let to = match to {
        Some(to) => to.to_owned(),
        None => seen.furthest_backup().with_context(|| format!("no backup of {cluster}/{name} is in sync"))?,
    };
    if seen.serves(&to) {
        return Ok(Outcome::already(&to, seen.epoch()));
    }
    request(&api, name, SWITCHOVER_ANNOTATION, &to, seen).await
}

pub(super) async fn force(namespace: Option<&str>, name: &str, to: &str, consent: Consent) -> anyhow::Result<Outcome> {
    let (api, _) = broker_clusters(namespace).await?;
    let seen = Seen::read(&api, name).await?;
    if seen.serves(to) {
        return Ok(Outcome::already(to, seen.epoch()));
    }
    consent.ask(&seen.what_may_be_lost(to))?;
    request(&api, name, FORCE_ANNOTATION, to, seen).await
}

async fn request(
    api: &Api<DynamicObject>,
    name: &str,
    annotation: &str,
    to: &str,
    before: Seen,
) -> anyhow::Result<Outcome> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: to } } }));
    api.patch(name, &PatchParams::default(), &patch).await.with_context(|| format!("{name} cannot be annotated"))?;
    let answered = async {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let seen = Seen::read(api, name).await?;
            let is_gone = seen.object.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(annotation));
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

impl Seen {
    async fn read(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<Self> {
        match api.get_opt(name).await.with_context(|| format!("BrokerCluster {name} cannot be read"))? {
            Some(object) => Ok(Self { object }),
            None => bail!("there is no BrokerCluster {name} here"),
        }
    }

    fn status(&self, field: &str) -> &Value {
        &self.object.data["status"][field]
    }

    fn epoch(&self) -> Option<u64> {
        self.status("epoch").as_u64()
    }

    fn serves(&self, pod: &str) -> bool {
        let conditions = self.status("conditions").as_array().into_iter().flatten();
        let available = conditions.filter(|condition| condition["type"] == "Available");
        self.status("primary") == pod && available.into_iter().any(|condition| condition["status"] == "True")
    }

    fn replicas(&self) -> impl Iterator<Item = &Value> {
        self.status("replicaStatuses").as_array().into_iter().flatten()
    }

    fn furthest_backup(&self) -> Option<String> {
        let backups = self.replicas().filter(|replica| replica["inSync"] == true && replica["role"] == "Backup");
        let furthest = backups.min_by_key(|replica| replica["lag"].as_u64().unwrap_or(u64::MAX))?;
        furthest["name"].as_str().map(str::to_owned)
    }

    /// By the status, which may be seconds old; the operator's event says it as of the election.
    fn what_may_be_lost(&self, pod: &str) -> String {
        let position = |replica: &Value| {
            let (epoch, index) = replica["position"].as_str()?.split_once(':')?;
            Some((epoch.parse::<u64>().ok()?, index.parse::<u64>().ok()?))
        };
        let own = self.replicas().find(|replica| replica["name"] == pod).and_then(position);
        let Some(own) = own else {
            return format!("how far {pod} is is not known: everything that it lacks is lost");
        };
        let ahead: Vec<String> = self
            .replicas()
            .filter_map(|replica| {
                let other = position(replica).filter(|other| *other > own)?;
                let more = other.1.saturating_sub(own.1);
                let at_least = if other.0 == own.0 { "" } else { "at least " };
                let name = replica["name"].as_str().unwrap_or_default();
                Some(format!("{name} has {at_least}{more} records more, up to {}:{}", other.0, other.1))
            })
            .collect();
        let unheard = self.replicas().filter(|replica| replica["name"] != pod && position(replica).is_none());
        let unheard = unheard.filter_map(|replica| replica["name"].as_str());
        let unheard = unheard.map(|name| format!("what {name} has is not known"));
        let texts: Vec<String> = ahead.into_iter().chain(unheard).collect();
        let texts = if texts.is_empty() { "nothing that is known".to_owned() } else { texts.join("; ") };
        format!("{pod} would go on from {}:{}; what may be lost: {texts}", own.0, own.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Seen { object: serde_json::from_value(object).unwrap() }
    }

    #[test]
    fn without_a_name_the_backup_that_is_furthest() {
        let seen = seen();
        assert_eq!(seen.furthest_backup().as_deref(), Some("orders-2"));
        assert!(seen.serves("orders-0") && !seen.serves("orders-2"));
    }

    #[test]
    fn what_others_have_more_is_told_before_it_is_lost() {
        let text = seen().what_may_be_lost("orders-3");
        for part in
            ["from 3:90", "orders-0 has at least 40 records more, up to 4:130", "what orders-4 has is not known"]
        {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(seen().what_may_be_lost("orders-0").contains("what orders-4 has is not known"));
        assert!(seen().what_may_be_lost("orders-4").contains("is not known"));
    }
}
