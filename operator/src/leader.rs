//! Which of several operators works: the holder of a Lease in the operator's own namespace. Two at once would be safe, since each
//! election is one compare-and-swap; this keeps them from writing the same objects twice.
//!
//! A Lease counts as abandoned once it has not changed for its duration on this process's own clock: what time it says is for
//! people. Who loses it ends, and its next process stands by.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep, timeout};

const NAME: &str = "understudy-operator";
const DURATION: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A request that is not answered by then has failed; several fit into [`DURATION`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// A Lease that is ours, as last written.
pub(crate) struct Leadership {
    api: Api<Lease>,
    me: String,
    lease: Lease,
    renewed_at: Instant,
}

/// What to do about the Lease as it was read.
#[derive(Debug, PartialEq)]
enum Step {
    Create(Box<Lease>),
    Take(Box<Lease>),
    Wait,
}

/// Waits until this process leads.
pub(crate) async fn stand(client: Client, namespace: &str, me: &str) -> Leadership {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    let mut seen: Option<(Option<String>, Instant)> = None;
    let mut is_told = false;
    loop {
        if let Ok(Ok(live)) = timeout(REQUEST_TIMEOUT, api.get_opt(NAME)).await {
            let version = live.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
            let since = match &seen {
                Some((known, since)) if *known == version => *since,
                _ => Instant::now(),
            };
            seen = Some((version, since));
            let step = next(live.as_ref(), me, since.elapsed());
            let written = match step {
                Step::Create(lease) => Some(timeout(REQUEST_TIMEOUT, api.create(&PostParams::default(), &lease)).await),
                Step::Take(lease) => {
                    Some(timeout(REQUEST_TIMEOUT, api.replace(NAME, &PostParams::default(), &lease)).await)
                }
                Step::Wait => None,
            };
            match written {
                Some(Ok(Ok(lease))) => {
                    tracing::info!(me, "this operator leads");
                    return Leadership { api, me: me.to_owned(), lease, renewed_at: Instant::now() };
                }
                Some(Ok(Err(error))) => tracing::info!(%error, "did not become the leader"),
                Some(Err(_)) => tracing::info!("did not become the leader: the API server does not answer"),
                None if !is_told => {
                    let holder = live.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
                    tracing::info!(me, holder, "stands by");
                    is_told = true;
                }
                None => {}
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

impl Leadership {
    /// Renews until that fails for as long as the Lease lasts, or another one has taken it.
    pub(crate) async fn lost(&mut self) -> String {
        loop {
            sleep(RENEW_EVERY).await;
            let mut next = self.lease.clone();
            next.spec.get_or_insert_default().renew_time = Some(now());
            match timeout(REQUEST_TIMEOUT, self.api.replace(NAME, &PostParams::default(), &next)).await {
                Ok(Ok(lease)) => (self.lease, self.renewed_at) = (lease, Instant::now()),
                Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => {
                    // Ours was written and its answer lost, or it is another one's.
                    match timeout(REQUEST_TIMEOUT, self.api.get_opt(NAME)).await {
                        Ok(Ok(Some(live))) if holder(&live) == Some(self.me.as_str()) => self.lease = live,
                        Ok(Ok(live)) => {
                            let other = live.as_ref().and_then(holder).unwrap_or("nobody").to_owned();
                            return format!("the operator's Lease is held by {other}");
                        }
                        _ => {}
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "the operator's Lease was not renewed"),
                Err(_) => tracing::warn!("the operator's Lease was not renewed: the API server does not answer"),
            }
            if self.renewed_at.elapsed() >= DURATION {
                return format!("the operator's Lease was not renewed for {} s", DURATION.as_secs());
            }
        }
    }

    /// In good order: whoever stands by need not wait.
    pub(crate) async fn release(mut self) {
        self.lease.spec.get_or_insert_default().holder_identity = Some(String::new());
        let _ = timeout(REQUEST_TIMEOUT, self.api.replace(NAME, &PostParams::default(), &self.lease)).await;
    }
}

fn next(live: Option<&Lease>, me: &str, unchanged_for: Duration) -> Step {
    let Some(live) = live else { return Step::Create(Box::new(taken(None, me))) };
    let is_free = holder(live).is_none_or(|holder| holder.is_empty() || holder == me);
    if is_free || unchanged_for >= DURATION { Step::Take(Box::new(taken(Some(live), me))) } else { Step::Wait }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// With the version that was read: of two that take it one is refused.
fn taken(live: Option<&Lease>, me: &str) -> Lease {
    let metadata = match live {
        Some(live) => live.metadata.clone(),
        None => ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() },
    };
    let before = live.and_then(|live| live.spec.as_ref()?.lease_transitions).unwrap_or(0);
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(me.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(before.saturating_add(1)),
            ..LeaseSpec::default()
        }),
    }
}

fn now() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(holder: &str) -> Lease {
        let mut lease = taken(None, holder);
        lease.metadata.resource_version = Some("7".into());
        lease
    }

    #[test]
    fn it_is_taken_when_it_is_free_or_abandoned() {
        let taken_by_me = |step: &Step, transitions: i32| match step {
            Step::Create(lease) | Step::Take(lease) => {
                let spec = lease.spec.as_ref().unwrap();
                holder(lease) == Some("me") && spec.lease_transitions == Some(transitions)
            }
            Step::Wait => false,
        };
        assert!(taken_by_me(&next(None, "me", Duration::ZERO), 1));
        assert!(taken_by_me(&next(Some(&live("")), "me", Duration::ZERO), 2));
        assert!(taken_by_me(&next(Some(&live("me")), "me", Duration::ZERO), 2));
        assert_eq!(next(Some(&live("other")), "me", Duration::from_millis(14_999)), Step::Wait);
        let abandoned = next(Some(&live("other")), "me", DURATION);
        assert!(taken_by_me(&abandoned, 2));
        let Step::Take(lease) = abandoned else { panic!("not taken") };
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"), "another one may be faster");
    }
}
