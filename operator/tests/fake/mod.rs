//! An API server of a few lines: keeps objects by path, knows create, read, server-side apply (without merging), and
//! delete, and remembers what was asked of it.

use std::collections::BTreeMap;
use std::io::Error;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    requests: Vec<(Method, String)>,
    version: u64,
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        self.client_of_a_life(usize::MAX)
    }

    /// Its owner hears of no answer from the n-th write that is taken on: to the API server it has ended there.
    pub(crate) fn client_of_a_life(&self, writes: usize) -> Client {
        let (state, taken) = (self.state.clone(), Arc::new(Mutex::new(0)));
        let service = service_fn(move |request: Request<Body>| {
            let (state, taken) = (state.clone(), taken.clone());
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let mut taken = taken.lock().unwrap();
                if *taken >= writes {
                    return Err(Error::other("this life is over"));
                }
                let (code, answer) = state.lock().unwrap().answer(&parts.method, parts.uri.path(), &bytes);
                *taken += usize::from(parts.method != Method::GET && code.is_success());
                if *taken >= writes {
                    return Err(Error::other("this life ends"));
                }
                let body = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// What was written since this was last asked: method and path.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        let requests = std::mem::take(&mut self.state.lock().unwrap().requests);
        let writes = requests.into_iter().filter(|(method, _)| method != Method::GET);
        writes.map(|(method, path)| format!("{method} {path}")).collect()
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Changes an object behind the client's back.
    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        change(self.state.lock().unwrap().objects.get_mut(path).unwrap_or_else(|| panic!("no {path}")));
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), object);
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        self.requests.push((method.clone(), path.to_owned()));
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        match *method {
            Method::GET => match self.objects.get(path) {
                Some(object) => (StatusCode::OK, object.clone()),
                // An API server that does not know the kind says so in plain words.
                None if path.contains("cert-manager") || path.contains("monitoring.coreos") => {
                    (StatusCode::NOT_FOUND, Value::String("404 page not found".into()))
                }
                None => status(StatusCode::NOT_FOUND, "NotFound"),
            },
            Method::PATCH => {
                let (before, after) = (self.objects.get(path), sent());
                let claims = |object: &Value| object["spec"]["volumeClaimTemplates"].clone();
                if before.is_some_and(|before| claims(before) != claims(&after)) {
                    let (code, mut answer) = status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
                    answer["message"] =
                        "spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"
                            .into();
                    return (code, answer);
                }
                self.store(path.to_owned(), after)
            }
            Method::POST => {
                let object = sent();
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                self.store(path, object)
            }
            Method::DELETE => match self.objects.remove(path) {
                Some(_) => {
                    (StatusCode::OK, json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}))
                }
                None => status(StatusCode::NOT_FOUND, "NotFound"),
            },
            _ => status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    /// Stores it with what an API server adds: a uid, a version, a default here and there.
    fn store(&mut self, path: String, mut object: Value) -> (StatusCode, Value) {
        self.version += 1;
        object["metadata"]["uid"] = format!("uid-{path}").into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["kind"] == "StatefulSet" {
            object["metadata"]["generation"] = 1.into();
            object["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
            object["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2000m".into();
            object["status"] = json!({"replicas": 3, "observedGeneration": 1, "updateRevision": "orders-abc"});
        }
        self.objects.insert(path, object.clone());
        (StatusCode::OK, object)
    }
}

fn status(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    (code, status)
}
