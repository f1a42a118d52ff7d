use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fake_api::{FakeApi, cluster_path};

const WITHIN: Duration = Duration::from_secs(60);
const ORDER: Manner = Manner { wait: Some(WITHIN), dry_run: false, yes: true };

fn pods(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn annotations(api: &FakeApi) -> Value {
    api.object(&cluster_path("orders")).unwrap()["metadata"]["annotations"].clone()
}

/// An operator that fences, hibernates and wakes as soon as it is told to.
fn obey(_: &str, cluster: &mut Value) {
    let ordered =
        |annotation: &str| cluster["metadata"]["annotations"][annotation].as_str().unwrap_or_default().to_owned();
    let (fenced, hibernation) = (ordered("understudy.dev/fenced"), ordered("understudy.dev/hibernation"));
    let in_sync: Vec<String> =
        (0..3).map(|n| format!("orders-{n}")).filter(|pod| !fenced.split(',').any(|name| name == pod)).collect();
    cluster["status"]["primary"] = in_sync.first().cloned().into();
    cluster["status"]["inSync"] = in_sync.into();
    let asleep = hibernation == "on";
    cluster["status"]["conditions"] = json!([
        {"type": "Available", "status": if asleep { "False" } else { "True" }, "reason": "x", "message": "y"},
        {"type": "Ready", "status": "True", "reason": if asleep { "Hibernated" } else { "AsSpecified" }, "message": "y"},
    ]);
}

async fn said(api: &FakeApi, order: Order, manner: Manner) -> String {
    match carry_out(&api.kubernetes(), Some("orders"), &order, manner).await {
        Ok(text) => text,
        Err(error) => format!("error: {error:#}"),
    }
}

#[tokio::test]
async fn every_order_by_its_annotation_and_twice_as_once() {
    let api = FakeApi::with_cluster("orders");
    api.react(obey);
    for (order, annotation, value, text) in [
        (Order::MaintenanceOn, "maintenance", Some("on"), "maintenance of orders is on"),
        (Order::MaintenanceOff, "maintenance", None, "maintenance of orders is off"),
        (Order::Pause, "reconcile", Some("paused"), "orders is paused"),
        (Order::Resume, "reconcile", None, "orders is not paused"),
        (Order::Hibernate, "hibernation", Some("on"), "orders is hibernated"),
        (Order::Wake, "hibernation", None, "orders is awake"),
        (Order::Fence(pods(&["orders-0"])), "fenced", Some("orders-0"), "orders-0 is fenced"),
        (Order::Unfence(pods(&["orders-0"])), "fenced", None, "orders-0 is in sync, and not fenced"),
    ] {
        let first = said(&api, order.clone(), ORDER).await;
        assert!(first.starts_with(text) && !first.contains("already"), "{first}");
        assert_eq!(annotations(&api)[format!("understudy.dev/{annotation}")].as_str(), value, "{order:?}");
        assert_eq!(api.first_not_granted(), None);
        assert_eq!(api.take_writes().len(), 1, "{order:?}");
        let second = said(&api, order.clone(), ORDER).await;
        assert_eq!(second, format!("{first} already"));
        assert_eq!(api.take_writes(), Vec::<String>::new(), "{order:?}");
    }
}

#[tokio::test]
async fn fences_add_up_and_end_one_by_one() {
    let api = FakeApi::with_cluster("orders");
    api.react(obey);
    said(&api, Order::Fence(pods(&["orders-2"])), ORDER).await;
    let text = said(&api, Order::Fence(pods(&["orders-0"])), ORDER).await;
    assert_eq!(annotations(&api)["understudy.dev/fenced"], "orders-0,orders-2", "{text}");
    let text = said(&api, Order::Unfence(pods(&["orders-2"])), ORDER).await;
    assert_eq!(annotations(&api)["understudy.dev/fenced"], "orders-0", "{text}");
}

#[tokio::test]
async fn a_list_that_somebody_else_changes_meanwhile_is_kept() {
    let api = FakeApi::with_cluster("orders");
    api.react(obey);
    let kubernetes = api.kubernetes();
    let stale = kubernetes.cluster(Some("orders")).await.unwrap();
    said(&api, Order::Fence(pods(&["orders-2"])), ORDER).await;
    let error = annotate(&kubernetes, &stale, &Order::Fence(pods(&["orders-0"])), false).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(refusal) if refusal.code == 409));
    assert_eq!(annotations(&api)["understudy.dev/fenced"], "orders-2");
}

#[tokio::test]
async fn the_last_one_in_sync_is_not_fenced() {
    let api = FakeApi::with_cluster("orders");
    api.change(&cluster_path("orders"), |cluster| cluster["status"]["inSync"] = json!(["orders-0"]));
    let text = said(&api, Order::Fence(pods(&["orders-0"])), ORDER).await;
    assert!(
        text.contains("not fenced: orders-0 is the only one in sync") && text.contains("status orders --watch"),
        "{text}"
    );
    let text = said(&api, Order::Fence(pods(&["orders-7"])), ORDER).await;
    assert!(text.contains("orders-7 is no pod of orders: it has orders-0, orders-1, orders-2"), "{text}");
    assert_eq!(api.take_writes(), Vec::<String>::new());
    api.change(&cluster_path("orders"), |cluster| cluster["status"]["inSync"] = json!(["orders-0", "orders-1"]));
    let text = said(&api, Order::Fence(pods(&["orders-0", "orders-1"])), ORDER).await;
    assert!(text.contains("only orders-0, orders-1 are in sync"), "{text}");
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

/// Tests have no terminal, or a person would be asked.
#[tokio::test]
async fn what_stops_service_needs_a_word() {
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        return;
    }
    let api = FakeApi::with_cluster("orders");
    let unasked = Manner { yes: false, ..ORDER };
    let text = said(&api, Order::Hibernate, unasked).await;
    assert!(text.contains("All 3 pods of orders end") && text.contains("--yes"), "{text}");
    let text = said(&api, Order::Fence(pods(&["orders-1", "orders-2"])), unasked).await;
    assert!(text.contains("1 replica stays in sync and minInSync is 2") && text.contains("--yes"), "{text}");
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_does_nothing_is_waited_for_so_long_and_told_of() {
    let api = FakeApi::with_cluster("orders");
    let text = said(&api, Order::Fence(pods(&["orders-0"])), ORDER).await;
    for part in
        ["does not show it after 60 s", "orders-0 is the primary still", "The order stands", "understudy-operator"]
    {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let text = said(&api, Order::Hibernate, Manner { wait: None, ..ORDER }).await;
    assert!(text.contains("orders-0 is fenced, and a hibernated cluster has no pod"), "{text}");
    api.change(&cluster_path("orders"), |cluster| cluster["metadata"]["annotations"] = json!({}));
    let text = said(&api, Order::Hibernate, Manner { wait: None, ..ORDER }).await;
    assert_eq!(text, "hibernation of orders is ordered; not waited for");
}

#[tokio::test]
async fn a_dry_run_asks_the_api_server_and_changes_nothing() {
    let api = FakeApi::with_cluster("orders");
    let dry = Manner { dry_run: true, yes: false, ..ORDER };
    let text = said(&api, Order::Hibernate, dry).await;
    assert!(text.starts_with("would set understudy.dev/hibernation=on on BrokerCluster orders"), "{text}");
    let writes = api.take_writes();
    assert!(writes.len() == 1 && writes[0].contains("dryRun=All"), "{writes:?}");
    assert_eq!(annotations(&api), json!({}));
    let text = said(&api, Order::Wake, dry).await;
    assert!(text.contains("already"), "{text}");
}

#[test]
fn the_cluster_is_that_of_the_pods() {
    let of = |names: &[&str]| cluster_of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(of(&["orders-0", "orders-2"]).unwrap(), "orders");
    assert_eq!(of(&["new-orders-1-0"]).unwrap(), "new-orders-1");
    assert!(of(&["orders-0", "payments-0"]).unwrap_err().to_string().contains("several clusters"));
    for name in ["orders", "-1", "orders-x", ""] {
        assert!(of(&[name]).unwrap_err().to_string().contains("no broker's pod"), "{name}");
    }
}
