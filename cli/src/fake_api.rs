//! For tests: an API server of a few lines. It keeps objects by path, knows read, list, create, merge patch (with a version to
//! meet) and delete, answers some paths with plain text, and lets a test play the operator after each write.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::rbac::v1::Role;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use crate::kubernetes::Kubernetes;

pub(crate) const NAMESPACE: &str = "shop";

/// Group, resource (with its subresource), verb.
type Grant = (String, String, String);
type Reaction = Box<dyn FnMut(&str, &mut Value) + Send>;

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    texts: BTreeMap<String, String>,
    requests: Vec<String>,
    version: u64,
    reaction: Option<Reaction>,
}

pub(crate) fn cluster_path(name: &str) -> String {
    format!("/apis/understudy.dev/v1alpha1/namespaces/{NAMESPACE}/brokerclusters/{name}")
}

/// Three replicas, all in sync, NAME-0 the primary.
pub(crate) fn cluster(name: &str) -> Value {
    let pod = |ordinal: u8| format!("{name}-{ordinal}");
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2026-01-02T03:00:00.000Z"})
    };
    json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": name, "namespace": NAMESPACE, "resourceVersion": "1", "annotations": {}},
        "spec": {"replicas": 3, "minInSync": 2},
        "status": {
            "replicas": 3, "primary": pod(0), "epoch": 4, "clusterVersion": 2, "inSync": [pod(0), pod(1), pod(2)],
            "replicaStatuses": [
                {"name": pod(0), "role": "Primary", "inSync": true, "position": "4:130"},
                {"name": pod(1), "role": "Backup", "inSync": true, "position": "4:120", "lag": 10},
                {"name": pod(2), "role": "Backup", "inSync": true, "position": "4:128", "lag": 2},
            ],
            "conditions": [
                condition("Available", "True", "PrimaryServing", "orders-0 serves as primary of epoch 4"),
                condition("Ready", "True", "AsSpecified", "3 replicas, all in sync"),
            ],
        },
    })
}

impl FakeApi {
    pub(crate) fn with_cluster(name: &str) -> Self {
        let api = Self::default();
        api.put(&cluster_path(name), cluster(name));
        api
    }

    pub(crate) fn kubernetes(&self) -> Kubernetes {
        let state = self.state.clone();
        let service = service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
                let (code, answer) = state.lock().unwrap().answer(&parts.method, path, query, &bytes);
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(answer)).unwrap())
            }
        });
        Kubernetes { client: Client::new(service, NAMESPACE), namespace: NAMESPACE.into() }
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    /// What a path says that is no object: a log, metrics.
    pub(crate) fn put_text(&self, path: &str, text: &str) {
        self.state.lock().unwrap().texts.insert(path.to_owned(), text.to_owned());
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        change(self.state.lock().unwrap().objects.get_mut(path).unwrap());
    }

    /// After each write, with the path and the object that was written: what an operator or a kubelet would make of it.
    pub(crate) fn react(&self, reaction: impl FnMut(&str, &mut Value) + Send + 'static) {
        self.state.lock().unwrap().reaction = Some(Box::new(reaction));
    }

    /// What was asked since this was last asked: method, path, query.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// The first thing that was asked and that the Role of the documentation does not allow; things outside the namespace apart.
    pub(crate) fn first_not_granted(&self) -> Option<String> {
        let granted = granted();
        let requests = self.state.lock().unwrap().requests.clone();
        let here = format!("/namespaces/{NAMESPACE}/");
        requests
            .into_iter()
            .filter(|request| request.contains(&here))
            .find(|request| !granted.contains(&grant(request)))
    }

    /// The writes among those.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        self.take_requests().into_iter().filter(|request| !request.starts_with("GET")).collect()
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
        let asked = if query.is_empty() { format!("{method} {path}") } else { format!("{method} {path}?{query}") };
        self.requests.push(asked);
        let is_dry = query.contains("dryRun=All");
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        let (code, answer) = match *method {
            Method::GET => match (self.texts.get(path), self.objects.get(path)) {
                (Some(text), _) => return (StatusCode::OK, text.clone().into_bytes()),
                (None, Some(object)) => (StatusCode::OK, object.clone()),
                (None, None) if is_collection(path) => (StatusCode::OK, self.list(path)),
                (None, None) => failure(StatusCode::NOT_FOUND, "NotFound"),
            },
            Method::PATCH => match self.objects.get(path).cloned() {
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
                Some(object) => {
                    let patch = sent();
                    let wanted = &patch["metadata"]["resourceVersion"];
                    if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                        failure(StatusCode::CONFLICT, "Conflict")
                    } else {
                        let mut object = object;
                        merge(&mut object, &patch);
                        self.store(path, object, is_dry)
                    }
                }
            },
            Method::POST => {
                let object = sent();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                self.store(&path, object, is_dry)
            }
            Method::DELETE => match self.objects.remove(path) {
                Some(_) => {
                    (StatusCode::OK, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}))
                }
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            },
            _ => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        };
        (code, serde_json::to_vec(&answer).unwrap())
    }

    fn list(&self, path: &str) -> Value {
        let under = format!("{path}/");
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(key, _)| key.strip_prefix(&under).is_some_and(|rest| !rest.contains('/')))
            .map(|(_, object)| object)
            .collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
    }

    fn store(&mut self, path: &str, mut object: Value, is_dry: bool) -> (StatusCode, Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = format!("v{}", self.version).into();
        let answer = object.clone();
        if !is_dry {
            if let Some(reaction) = &mut self.reaction {
                reaction(path, &mut object);
            }
            self.objects.insert(path.to_owned(), object);
        }
        (StatusCode::OK, answer)
    }
}

/// What the Role in the documentation allows.
fn granted() -> BTreeSet<Grant> {
    let text = include_str!("../../docs/kubectl.md");
    let role = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let role: Role = serde_yaml::from_str(role).unwrap();
    let mut granted = BTreeSet::new();
    for rule in role.rules.unwrap() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                granted.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    granted
}

/// What a request needs.
fn grant(request: &str) -> Grant {
    let (method, path) = request.split_once(' ').unwrap();
    let path = path.split('?').next().unwrap();
    let (api, rest) = path.split_once(&format!("/namespaces/{NAMESPACE}/")).unwrap();
    let group = api.strip_prefix("/apis/").map_or("", |api| api.split('/').next().unwrap());
    let mut parts = rest.split('/');
    let resource = parts.next().unwrap();
    let (name, part) = (parts.next(), parts.next());
    let verb = match (method, name) {
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("PATCH", _) => "patch",
        ("POST", _) => "create",
        ("DELETE", _) => "delete",
        other => panic!("{other:?}"),
    };
    let resource = part.map_or_else(|| resource.to_owned(), |part| format!("{resource}/{part}"));
    (group.to_owned(), resource, verb.to_owned())
}

/// Paths of objects have an even number of parts after the group and version; `/api/v1/namespaces/shop/pods` is none.
fn is_collection(path: &str) -> bool {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let after = if parts[0] == "api" { 2 } else { 3 };
    // A log is a part of a pod, not a collection.
    parts.len().saturating_sub(after) % 2 == 1 && parts.last() != Some(&"log")
}

/// RFC 7386.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut object[field], value);
        }
    }
}

fn failure(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    (code, status)
}
