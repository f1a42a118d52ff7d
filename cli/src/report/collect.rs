//! What a bundle is made of: objects, logs, metrics, each read once and bounded, and struck through before it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use serde_json::Value;
use time::OffsetDateTime;

use super::strike::Striker;
use crate::kubernetes::{GROUP, Kubernetes, Seen, VERSION};
use crate::status::{View, summarize};

/// Of one log: some hours of a busy broker's.
const MAX_LOG_BYTES: u64 = 2 << 20;
/// Objects of one kind; a cluster has at most nine of any but events.
const MAX_OBJECTS: u32 = 1_000;
/// An API server whose node does not answer waits for it for a while.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const OPERATOR_LABEL: &str = "app.kubernetes.io/name=understudy-operator";
const HTTP_PORT: u16 = 15_692;

/// Keys of Secrets that are no secrets.
const PUBLIC_KEYS: [&str; 6] = ["host", "port", "tls-port", "username", "ca.crt", "tls.crt"];

/// Kinds of which a cluster's objects have its label: file, API, resource.
const LABELLED: [(&str, &str, &str); 8] = [
    ("statefulsets", "apis/apps/v1", "statefulsets"),
    ("pods", "api/v1", "pods"),
    ("services", "api/v1", "services"),
    ("endpointslices", "apis/discovery.k8s.io/v1", "endpointslices"),
    ("persistentvolumeclaims", "api/v1", "persistentvolumeclaims"),
    ("poddisruptionbudgets", "apis/policy/v1", "poddisruptionbudgets"),
    ("networkpolicies", "apis/networking.k8s.io/v1", "networkpolicies"),
    ("serviceaccounts", "api/v1", "serviceaccounts"),
];

pub(super) struct Bundle {
    pub(super) cluster: String,
    /// Texts by their names in the archive.
    pub(super) files: BTreeMap<String, String>,
    /// What could not be read, and why.
    pub(super) problems: Vec<String>,
}

struct Collector<'a> {
    kubernetes: &'a Kubernetes,
    striker: Striker,
    bundle: Bundle,
}

/// # Errors
/// If there is no such cluster. Everything else that cannot be read is a problem of the bundle.
pub(super) async fn collect(
    kubernetes: &Kubernetes,
    name: Option<&str>,
    operator_namespace: &str,
    now: OffsetDateTime,
) -> anyhow::Result<Bundle> {
    let seen = kubernetes.cluster(name).await?;
    let name = seen.name().to_owned();
    let bundle = Bundle { cluster: name.clone(), files: BTreeMap::new(), problems: Vec::new() };
    let mut collector = Collector { kubernetes, striker: Striker::default(), bundle };
    let namespace = &kubernetes.namespace;
    let here = |api: &str, rest: &str| format!("/{api}/namespaces/{namespace}/{rest}");

    let own = here(&format!("apis/{GROUP}/{VERSION}"), &format!("brokerclusters/{name}"));
    let mut objects: Vec<(&str, Vec<Value>)> = vec![("brokercluster", collector.object(&own).await)];
    for (file, api, resource) in LABELLED {
        let path =
            format!("{}?limit={MAX_OBJECTS}&labelSelector=app.kubernetes.io%2Finstance%3D{name}", here(api, resource));
        let found = collector.list(&path).await;
        objects.push((file, found));
    }
    objects.push(("lease", collector.object(&here("apis/coordination.k8s.io/v1", &format!("leases/{name}"))).await));
    let events = collector.list(&format!("{}?limit={MAX_OBJECTS}", here("api/v1", "events"))).await;
    objects.push(("events", events.into_iter().filter(|event| concerns(event, &name)).collect()));
    let operators = collector.operator(operator_namespace).await;
    objects.push(("operator", operators.clone()));

    // Before anything is kept: what must not come out.
    let secrets = collector.secrets(&name, &objects).await;
    objects.push(("secrets", secrets));
    let of = |file: &str| objects.iter().find(|(name, _)| *name == file).map(|(_, found)| found.clone());
    let pods = names(of("pods").as_deref().unwrap_or_default());
    for (file, found) in objects {
        collector.keep_objects(&format!("{file}.yaml"), found);
    }
    collector.status(&seen, now);
    for pod in &pods {
        collector.log(namespace, pod, &format!("logs/{pod}.log"), false).await;
        collector.log(namespace, pod, &format!("logs/{pod}.previous.log"), true).await;
        let path = here("api/v1", &format!("pods/{pod}:{HTTP_PORT}/proxy/metrics"));
        match collector.text(&path).await {
            Ok(text) => collector.keep(&format!("metrics/{pod}.txt"), &text),
            Err(error) => collector.problem(&format!("the metrics of {pod}"), &error),
        }
    }
    for pod in names(&operators) {
        collector.log(operator_namespace, &pod, &format!("operator/{pod}.log"), false).await;
        collector.log(operator_namespace, &pod, &format!("operator/{pod}.previous.log"), true).await;
    }
    collector.about(now);
    Ok(collector.bundle)
}

impl Collector<'_> {
    async fn text(&self, path: &str) -> anyhow::Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.kubernetes.client.request_text(request)).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {} s", ANSWER_WITHIN.as_secs()))?;
        answer.map_err(|error| match error {
            kube::Error::Api(refusal) => anyhow!("{} ({})", refusal.message, refusal.code),
            other => other.into(),
        })
    }

    async fn json(&self, path: &str) -> anyhow::Result<Value> {
        serde_json::from_str(&self.text(path).await?).context("the answer is no JSON")
    }

    async fn object(&mut self, path: &str) -> Vec<Value> {
        match self.json(path).await {
            Ok(object) => vec![object],
            Err(error) => {
                self.problem(path, &error);
                Vec::new()
            }
        }
    }

    async fn list(&mut self, path: &str) -> Vec<Value> {
        match self.json(path).await {
            Ok(mut list) => {
                let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).map(str::to_owned);
                let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
                // Items of a list do not say what they are; what they are says what is secret.
                let named = |mut item: Value| {
                    if let (Some(kind), true) = (&kind, item["kind"].is_null()) {
                        item["kind"] = kind.clone().into();
                    }
                    item
                };
                items.into_iter().map(named).collect()
            }
            Err(error) => {
                self.problem(path, &error);
                Vec::new()
            }
        }
    }

    async fn operator(&mut self, namespace: &str) -> Vec<Value> {
        let selector = OPERATOR_LABEL.replace('/', "%2F").replace('=', "%3D");
        let path = format!("/api/v1/namespaces/{namespace}/pods?limit={MAX_OBJECTS}&labelSelector={selector}");
        let found = self.list(&path).await;
        if found.is_empty() {
            let error = anyhow!("there are no pods with the label {OPERATOR_LABEL}: say --operator-namespace");
            self.problem(&format!("an operator in namespace {namespace}"), &error);
        }
        found
    }

    /// The cluster's Secrets and those that it refers to, as they are: they are outlined when they are kept. From here on their
    /// values are struck out everywhere.
    async fn secrets(&mut self, cluster: &str, objects: &[(&str, Vec<Value>)]) -> Vec<Value> {
        let mut wanted: BTreeSet<String> =
            ["user", "tls", "ca", "client-tls", "client-ca"].map(|what| format!("{cluster}-{what}")).into();
        for (_, found) in objects {
            found.iter().for_each(|object| references(object, &mut wanted));
        }
        let api: Api<Secret> = self.kubernetes.api();
        let (mut secrets, mut values) = (Vec::new(), Vec::new());
        for name in wanted {
            match api.get_opt(&name).await {
                Ok(Some(secret)) => {
                    let data = secret.data.iter().flatten().map(|(key, value)| (key, value.0.clone()));
                    let secret_data = data.filter(|(key, _)| !PUBLIC_KEYS.contains(&key.as_str()));
                    values.extend(secret_data.filter_map(|(_, value)| String::from_utf8(value).ok()));
                    let mut object = serde_json::to_value(&secret).unwrap_or_default();
                    object["kind"] = "Secret".into();
                    secrets.push(object);
                }
                Ok(None) => {}
                Err(error) => self.problem(
                    &format!("Secret {name}, whose values would be struck out wherever they stand"),
                    &error.into(),
                ),
            }
        }
        self.striker = Striker::knowing(values);
        secrets
    }

    async fn log(&mut self, namespace: &str, pod: &str, file: &str, previous: bool) {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{pod}/log?timestamps=true&previous={previous}&tailLines=20000&limitBytes={MAX_LOG_BYTES}"
        );
        match self.text(&path).await {
            Ok(text) => self.keep(file, &text),
            // Most containers have no predecessor.
            Err(_) if previous => {}
            Err(error) => self.problem(&format!("the log of {pod}"), &error),
        }
    }

    fn status(&mut self, seen: &Seen, now: OffsetDateTime) {
        let cluster = format!("{}/{}", self.kubernetes.namespace, seen.name());
        match summarize(&cluster, seen) {
            Ok(summary) => {
                let text = summary.to_text(&View { now, colour: false, failovers: true });
                self.keep("status.txt", &text);
            }
            Err(error) => self.problem("the status as a text", &error.into()),
        }
    }

    fn about(&mut self, now: OffsetDateTime) {
        let mut text = format!(
            "understudy {}\ncluster {}/{}\nmade {now}\n\nSecrets are here by name, type and keys alone; what looks like a secret is \
             struck out.\n",
            env!("CARGO_PKG_VERSION"),
            self.kubernetes.namespace,
            self.bundle.cluster,
        );
        if !self.bundle.problems.is_empty() {
            text.push_str("\nNot in it:\n");
        }
        for problem in &self.bundle.problems {
            text.push_str(&format!("  {problem}\n"));
        }
        self.keep("about.txt", &text);
    }

    fn keep_objects(&mut self, file: &str, mut objects: Vec<Value>) {
        let mut text = String::new();
        for object in &mut objects {
            self.striker.object(object);
            text.push_str("---\n");
            text.push_str(&serde_yaml::to_string(object).unwrap_or_else(|error| format!("# {error}\n")));
        }
        if !text.is_empty() {
            self.keep(file, &text);
        }
    }

    fn keep(&mut self, file: &str, text: &str) {
        let text = self.striker.text(text);
        self.bundle.files.insert(file.to_owned(), text);
    }

    fn problem(&mut self, what: &str, error: &anyhow::Error) {
        self.bundle.problems.push(self.striker.text(&format!("{what}: {error:#}")));
    }
}

/// Whether an event is about the cluster or one of its objects: they are all called NAME or NAME-something, volumes' claims
/// data-NAME-something.
fn concerns(event: &Value, cluster: &str) -> bool {
    let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
    let name = name.strip_prefix("data-").unwrap_or(name);
    name.strip_prefix(cluster).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn names(objects: &[Value]) -> Vec<String> {
    objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// Names of Secrets that stand in an object.
fn references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| references(value, into)),
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = match field.as_str() {
                    "secretName" => value.as_str(),
                    "secretKeyRef" | "secretRef" => value["name"].as_str(),
                    _ => None,
                };
                into.extend(name.map(str::to_owned));
                if field.eq_ignore_ascii_case("imagePullSecrets") {
                    let listed = value.as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
                    into.extend(listed.map(str::to_owned));
                }
                references(value, into);
            }
        }
        _ => {}
    }
}
