//! What the brokers' and the operator's ServiceAccounts may do, asked of the API server itself: for each resource that it knows
//! and each verb, in the cluster's namespace and in another, by no name and by several. What is allowed is what is listed here.
//!
//! What everybody may do (`system:basic-user`, `system:discovery`) is found by asking for an account without any rights.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SelfSubjectRulesReview,
    SelfSubjectRulesReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::discovery::Discovery;
use kube::{Client, ResourceExt};
use serde_json::json;
use understudy_e2e::{Account, Space, eventually, with_temp_ns};

use crate::{PATIENCE, small};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
/// Questions that are asked at a time.
const AT_A_TIME: usize = 32;
const ELSEWHERE: &str = "default";
/// A name that nothing of the cluster has.
const STRANGER: &str = "someone-else";

/// Group, resource, verbs, and the names they are for: none is all.
type Rights = &'static [(&'static str, &'static str, &'static str, &'static [&'static str])];

/// Of the brokers of a cluster `orders` with one replica, in its namespace. RBAC limits no `create` to a name.
const BROKER: Rights = &[
    ("coordination.k8s.io", "leases", "get list watch update", &["orders"]),
    ("coordination.k8s.io", "leases", "create", &[]),
    ("discovery.k8s.io", "endpointslices", "get update", &["orders-primary"]),
    ("", "pods", "patch", &["orders-0"]),
];

/// Of an operator that looks after all namespaces.
const OPERATOR: Rights = &[
    ("", "nodes", "list watch", &[]),
    ("understudy.dev", "brokerclusters", "get list watch patch", &[]),
    ("understudy.dev", "brokerclusters/status", "patch", &[]),
    ("understudy.dev", "brokerclusters/finalizers", "update", &[]),
    ("apps", "statefulsets", "get list watch create patch delete", &[]),
    ("", "services", "get list watch create patch", &[]),
    ("", "serviceaccounts", "get list watch create patch", &[]),
    ("", "secrets", "get list watch create patch", &[]),
    ("", "pods", "list watch delete patch", &[]),
    ("", "configmaps", "get list watch create patch", &[]),
    ("", "persistentvolumeclaims", "list patch", &[]),
    ("", "events", "list", &[]),
    ("events.k8s.io", "events", "create patch", &[]),
    ("policy", "poddisruptionbudgets", "get list watch create patch delete", &[]),
    ("networking.k8s.io", "networkpolicies", "get list watch create patch delete", &[]),
    ("cert-manager.io", "certificates", "get create patch delete", &[]),
    ("monitoring.coreos.com", "podmonitors", "get create patch delete", &[]),
    ("rbac.authorization.k8s.io", "roles", "get list watch create patch", &[]),
    ("rbac.authorization.k8s.io", "rolebindings", "get list watch create patch", &[]),
    ("coordination.k8s.io", "leases", "get list watch create update delete", &[]),
    ("discovery.k8s.io", "endpointslices", "get list watch create update delete", &[]),
];

/// One question. `name` empty: by no name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    namespace: String,
    group: String,
    resource: String,
    verb: &'static str,
    name: &'static str,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn accounts_may_do_what_is_listed_and_nothing_else() {
    with_temp_ns("rights", |space| async move {
        let (broker, nobody) = accounts(&space).await?;
        let (broker, nobody) = (broker.client(&space.client).await?, nobody.client(&space.client).await?);
        let operator = Account::operator().client(&space.client).await?;
        let resources = resources(&space.client).await?;
        let places = [space.namespace.as_str(), ELSEWHERE];

        let names = ["", STRANGER, "orders", "orders-primary", "orders-0", "orders-1"];
        let asked = questions(&resources, &places, &names);
        let listed = |question: &Question| question.namespace == space.namespace && allows(BROKER, question);
        let answered = differences(&broker, &nobody, &asked, listed).await.context("brokers")?;
        println!("brokers: {answered} questions about {} resources, {} allowed", resources.len(), {
            asked.iter().filter(|question| listed(question)).count()
        });

        let asked = questions(&resources, &places, &["", STRANGER]);
        let listed = |question: &Question| allows(OPERATOR, question);
        let answered = differences(&operator, &nobody, &asked, listed).await.context("the operator")?;
        println!("the operator: {answered} questions, {} allowed", asked.iter().filter(|q| listed(q)).count());

        // Also what no discovery tells of: other verbs (`escalate`, `impersonate`), other paths, all at once (`*`).
        let rules = async |client: &Client, place: &str| rules(client, place).await;
        for (who, client, place, rights) in [
            ("brokers", &broker, places[0], BROKER),
            ("brokers elsewhere", &broker, ELSEWHERE, &[] as Rights),
            ("the operator", &operator, ELSEWHERE, OPERATOR),
        ] {
            let everybodys = rules(&nobody, place).await?;
            let own: BTreeSet<String> = rules(client, place).await?.difference(&everybodys).cloned().collect();
            let listed = written(rights);
            let (more, less): (Vec<_>, Vec<_>) = (own.difference(&listed).collect(), listed.difference(&own).collect());
            ensure!(more.is_empty() && less.is_empty(), "{who}: not listed: {more:?}; listed, and not given: {less:?}");
        }
        calls_are_refused(&space, &broker).await
    })
    .await;
}

/// The brokers' account of a cluster that has been made, and one without rights.
async fn accounts(space: &Space) -> Result<(Account, Account)> {
    let mut spec = small();
    spec["replicas"] = json!(1);
    let cluster = space.create_cluster(spec).await?;
    let name = format!("{}-broker", cluster.name);
    eventually("the brokers' rights", PATIENCE, async || {
        cluster.read::<RoleBinding>(&name).await?;
        cluster.read::<Lease>(&cluster.name).await.map(drop)
    })
    .await?;
    let accounts: Api<ServiceAccount> = cluster.api();
    let nobody = serde_json::from_value(json!({ "metadata": { "name": "nobody" } }))?;
    accounts.create(&PostParams::default(), &nobody).await?;
    let account = |name: String| Account { namespace: space.namespace.clone(), name };
    Ok((account(name), account("nobody".into())))
}

/// Group and name of each resource and subresource that the API server knows, and of those that the operator would ask for.
async fn resources(client: &Client) -> Result<BTreeSet<(String, String)>> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let mut resources = BTreeSet::new();
    for group in discovery.groups() {
        for version in group.versions() {
            for (resource, capabilities) in group.versioned_resources(version) {
                let subresources = capabilities.subresources.iter().map(|(sub, _)| {
                    let sub = sub.plural.rsplit('/').next().unwrap_or(&sub.plural).to_owned();
                    (resource.group.clone(), format!("{}/{sub}", resource.plural))
                });
                resources.extend(subresources);
                resources.insert((resource.group.clone(), resource.plural));
            }
        }
    }
    ensure!(resources.len() > 60, "the API server knows only {resources:?}");
    resources.extend(OPERATOR.iter().map(|(group, resource, ..)| ((*group).to_owned(), (*resource).to_owned())));
    Ok(resources)
}

fn questions(resources: &BTreeSet<(String, String)>, places: &[&str], names: &[&'static str]) -> BTreeSet<Question> {
    let mut questions = BTreeSet::new();
    for (group, resource) in resources {
        for verb in VERBS {
            for name in names {
                questions.extend(places.iter().map(|place| Question {
                    namespace: (*place).to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                    name,
                }));
            }
        }
    }
    questions
}

fn allows(rights: Rights, question: &Question) -> bool {
    rights.iter().any(|(group, resource, verbs, names)| {
        *group == question.group
            && *resource == question.resource
            && verbs.split(' ').any(|verb| verb == question.verb)
            && (names.is_empty() || names.contains(&question.name))
    })
}

/// Asks all of them; returns how many that were.
async fn differences(
    client: &Client,
    nobody: &Client,
    questions: &BTreeSet<Question>,
    listed: impl Fn(&Question) -> bool,
) -> Result<usize> {
    let answers = futures::stream::iter(questions.iter().cloned().map(|question| async move {
        let is_allowed = ask(client, &question).await?;
        anyhow::Ok((question, is_allowed))
    }));
    let answers: Vec<(Question, bool)> = answers.buffer_unordered(AT_A_TIME).try_collect().await?;
    let (mut more, mut less) = (Vec::new(), Vec::new());
    for (question, is_allowed) in &answers {
        match (is_allowed, listed(question)) {
            (true, false) if !ask(nobody, question).await? => more.push(question),
            (false, true) => less.push(question),
            _ => {}
        }
    }
    ensure!(more.is_empty(), "{} allowed and not listed, as {:?}", more.len(), &more[..more.len().min(5)]);
    ensure!(less.is_empty(), "{} listed and not allowed, as {:?}", less.len(), &less[..less.len().min(5)]);
    Ok(answers.len())
}

async fn ask(client: &Client, question: &Question) -> Result<bool> {
    let (resource, sub) = match question.resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (question.resource.as_str(), None),
    };
    let attributes = ResourceAttributes {
        namespace: Some(question.namespace.clone()),
        group: Some(question.group.clone()),
        resource: Some(resource.to_owned()),
        subresource: sub,
        verb: Some(question.verb.to_owned()),
        name: Some(question.name.to_owned()).filter(|name| !name.is_empty()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("no answer")?.allowed)
}

/// Each right in a namespace as the API server lists it, one line for each verb of each resource, or path.
async fn rules(client: &Client, namespace: &str) -> Result<BTreeSet<String>> {
    let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) };
    let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
    let answer: SelfSubjectRulesReview = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    let status = answer.status.context("no answer")?;
    let mut rules = BTreeSet::new();
    for rule in status.resource_rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                rules.extend(rule.verbs.iter().map(|verb| line(group, resource, verb, rule.resource_names.as_deref())));
            }
        }
    }
    for rule in status.non_resource_rules {
        for path in rule.non_resource_urls.iter().flatten() {
            rules.extend(rule.verbs.iter().map(|verb| format!("{verb} {path}")));
        }
    }
    Ok(rules)
}

fn line(group: &str, resource: &str, verb: &str, names: Option<&[String]>) -> String {
    let mut names = names.unwrap_or_default().to_vec();
    names.sort();
    format!("{verb} {resource}.{group} {}", names.join(","))
}

fn written(rights: Rights) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (group, resource, verbs, names) in rights {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        lines.extend(verbs.split(' ').map(|verb| line(group, resource, verb, Some(&names))));
    }
    lines
}

/// The API server does as it says.
async fn calls_are_refused(space: &Space, broker: &Client) -> Result<()> {
    let here = space.namespace.as_str();
    let (secrets, pods): (Api<Secret>, Api<Pod>) =
        (Api::namespaced(broker.clone(), here), Api::namespaced(broker.clone(), here));
    let (leases, elsewhere): (Api<Lease>, Api<Lease>) =
        (Api::namespaced(broker.clone(), here), Api::namespaced(broker.clone(), ELSEWHERE));
    let slices: Api<EndpointSlice> = Api::namespaced(broker.clone(), here);
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let label = Patch::Merge(json!({ "metadata": { "labels": { "understudy.dev/role": "primary" } } }));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "another" }, "spec": { "containers": [{ "name": "a", "image": "a" }] },
    }))?;
    let tried = [
        ("read its users' Secret", secrets.get("orders-user").await.map(drop)),
        ("read its certificates", secrets.get("orders-tls").await.map(drop)),
        ("list Secrets", secrets.list(&ListParams::default()).await.map(drop)),
        ("read another cluster's Lease", leases.get("payments").await.map(drop)),
        ("list all Leases", leases.list(&ListParams::default()).await.map(drop)),
        ("delete its own Lease", leases.delete("orders", &DeleteParams::default()).await.map(drop)),
        ("patch its own Lease", leases.patch("orders", &dry, &label).await.map(drop)),
        ("read a Lease elsewhere", elsewhere.get("orders").await.map(drop)),
        ("delete its own slice", slices.delete("orders-primary", &DeleteParams::default()).await.map(drop)),
        ("read another slice", slices.get("payments-primary").await.map(drop)),
        ("make a pod", pods.create(&PostParams::default(), &pod).await.map(drop)),
        ("delete its own pod", pods.delete("orders-0", &DeleteParams::default()).await.map(drop)),
        ("label another pod", pods.patch("orders-1", &dry, &label).await.map(drop)),
        ("read its own pod", pods.get("orders-0").await.map(drop)),
    ];
    for (what, outcome) in tried {
        let is_refused = matches!(&outcome, Err(kube::Error::Api(status)) if status.code == 403);
        ensure!(is_refused, "a broker may {what}: {outcome:?}");
    }
    // And what it has to do it can.
    let lease = leases.get("orders").await?;
    let unchanged = PostParams { dry_run: true, ..PostParams::default() };
    leases.replace("orders", &unchanged, &lease).await?;
    ensure!(!lease.name_any().is_empty() && !slices.get("orders-primary").await?.name_any().is_empty(), "unnamed");
    pods.patch("orders-0", &dry, &label).await.map(drop).context("its own pod's label")
}
