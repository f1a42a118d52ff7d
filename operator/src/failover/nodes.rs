//! Which nodes are cordoned. One watch for all clusters; where the operator may not look at nodes (it looks after one namespace),
//! none is known to be, and an eviction alone makes the primary hand over.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;

pub(super) fn watch_cordoned(client: Client) -> watch::Receiver<BTreeSet<String>> {
    let (sender, receiver) = watch::channel(BTreeSet::new());
    tokio::spawn(async move {
        let api: Api<Node> = Api::all(client);
        let mut events = watcher(api, watcher::Config::default()).backoff(crate::watch_retry::WatchRetry).boxed();
        let mut cordons = Cordons::default();
        let mut is_refused = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    cordons.handle(event);
                    sender.send_if_modified(|known| {
                        let now = cordons.cordoned();
                        let changed = *known != now;
                        *known = now;
                        changed
                    });
                }
                Err(error) if !is_refused => {
                    tracing::warn!(%error, "nodes are not watched: no primary hands over before its node is drained");
                    is_refused = true;
                }
                Err(_) => {}
            }
            if sender.is_closed() {
                return;
            }
        }
    });
    receiver
}

#[derive(Debug, Default)]
struct Cordons {
    /// By name, whether it takes no pods.
    nodes: BTreeMap<String, bool>,
    listing: Option<BTreeMap<String, bool>>,
}

impl Cordons {
    fn handle(&mut self, event: watcher::Event<Node>) {
        let is_cordoned = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        match event {
            watcher::Event::Apply(node) => {
                self.nodes.insert(node.name_any(), is_cordoned(&node));
            }
            watcher::Event::Delete(node) => {
                self.nodes.remove(&node.name_any());
            }
            watcher::Event::Init => self.listing = Some(BTreeMap::new()),
            watcher::Event::InitApply(node) => {
                self.listing.get_or_insert_default().insert(node.name_any(), is_cordoned(&node));
            }
            watcher::Event::InitDone => self.nodes = self.listing.take().unwrap_or_default(),
        }
    }

    fn cordoned(&self) -> BTreeSet<String> {
        self.nodes.iter().filter(|(_, cordoned)| **cordoned).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_cordoned_until_it_takes_pods_again_or_is_gone() {
        let node = |name: &str, unschedulable: bool| {
            let json = serde_json::json!({"metadata": {"name": name}, "spec": {"unschedulable": unschedulable}});
            serde_json::from_value::<Node>(json).unwrap()
        };
        let mut cordons = Cordons::default();
        cordons.handle(watcher::Event::Init);
        cordons.handle(watcher::Event::InitApply(node("a", true)));
        cordons.handle(watcher::Event::InitApply(node("b", false)));
        assert!(cordons.cordoned().is_empty(), "the list is not whole");
        cordons.handle(watcher::Event::InitDone);
        assert_eq!(cordons.cordoned(), ["a".to_owned()].into());
        cordons.handle(watcher::Event::Apply(node("b", true)));
        cordons.handle(watcher::Event::Apply(node("a", false)));
        assert_eq!(cordons.cordoned(), ["b".to_owned()].into());
        cordons.handle(watcher::Event::Delete(node("b", true)));
        assert!(cordons.cordoned().is_empty());
    }
}
