//! An API server with one kind of object and one name, in memory. It compares `resourceVersion` as the real one does, and
//! fails when told to.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub(crate) const NAMESPACE: &str = "messaging";
pub(crate) const NAME: &str = "orders";
const COLLECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/messaging/leases";

/// What happens to the next request of its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Answered with this status, nothing done.
    Status(u16),
    /// Done, and then answered with this status.
    DoneThenStatus(u16),
    /// Never answered, nothing done.
    Silence,
    /// Done, and never answered.
    DoneThenSilence,
    /// Done, and answered with what is no object.
    DoneThenGarbage,
    /// The connection fails.
    Reset,
}

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    version: u64,
    object: Option<Value>,
    /// Every change, with the version it made.
    events: Vec<(u64, Value)>,
    write_faults: VecDeque<Fault>,
    watch_faults: VecDeque<Fault>,
    read_faults: VecDeque<Fault>,
    requests: Vec<String>,
}

impl FakeApi {
    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn fail_write(&self, fault: Fault) {
        self.state.lock().unwrap().write_faults.push_back(fault);
    }

    pub(crate) fn fail_watch(&self, fault: Fault) {
        self.state.lock().unwrap().watch_faults.push_back(fault);
    }

    pub(crate) fn fail_read(&self, fault: Fault) {
        self.state.lock().unwrap().read_faults.push_back(fault);
    }

    pub(crate) fn object(&self) -> Option<Value> {
        self.state.lock().unwrap().object.clone()
    }

    /// Method and path of each request so far; forgets them.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Somebody else changes the object.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        let mut object = state.object.clone().expect("there is an object to edit");
        edit(&mut object);
        state.put(object);
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn delete(&self) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let mut object = state.object.take().expect("there is an object to delete");
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        state.events.push((version, json!({ "type": "DELETED", "object": object })));
        drop(state);
        self.changed.notify_waiters();
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let query = uri.query().unwrap_or_default().to_owned();
        let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
        let watching = query.contains("watch=true");
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(format!("{method} {}{}", uri.path(), if watching { " (watch)" } else { "" }));
            match method {
                Method::GET if watching => state.watch_faults.pop_front(),
                Method::GET => state.read_faults.pop_front(),
                _ => state.write_faults.pop_front(),
            }
        };
        let done = async || match (method.clone(), uri.path() == COLLECTION) {
            (Method::GET, true) if watching => self.watch(&query).await,
            (Method::GET, true) => self.list(),
            (Method::GET, false) => self.get(),
            (Method::POST, true) => self.create(&body),
            (Method::PUT, false) => self.replace(&body),
            (method, _) => status(405, &format!("{method} {uri}")),
        };
        match fault {
            None => Ok(done().await),
            Some(Fault::Status(code)) => Ok(status(code, "as told")),
            Some(Fault::DoneThenStatus(code)) => {
                done().await;
                Ok(status(code, "as told"))
            }
            Some(Fault::Silence) => Ok(never().await),
            Some(Fault::DoneThenSilence) => {
                done().await;
                Ok(never().await)
            }
            Some(Fault::DoneThenGarbage) => {
                done().await;
                Ok(respond(200, b"{]".to_vec()))
            }
            Some(Fault::Reset) => Err(std::io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn get(&self) -> Response<Body> {
        self.state.lock().unwrap().object.as_ref().map_or_else(|| status(404, "NotFound"), |object| ok(200, object))
    }

    fn list(&self) -> Response<Body> {
        let state = self.state.lock().unwrap();
        let items: Vec<&Value> = state.object.iter().collect();
        let metadata = json!({ "resourceVersion": state.version.max(1).to_string() });
        let list = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": metadata, "items": items,
        });
        ok(200, &list)
    }

    /// Answers with the changes after the version asked for, once there are any, and ends.
    async fn watch(&self, query: &str) -> Response<Body> {
        let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
        loop {
            let changed = self.changed.notified();
            let lines: String = {
                let state = self.state.lock().unwrap();
                state.events.iter().filter(|(at, _)| *at > from).map(|(_, event)| format!("{event}\n")).collect()
            };
            if !lines.is_empty() {
                return respond(200, lines.into_bytes());
            }
            changed.await;
        }
    }

    fn create(&self, body: &[u8]) -> Response<Body> {
        let mut state = self.state.lock().unwrap();
        if state.object.is_some() {
            return status(409, "AlreadyExists");
        }
        let mut object: Value = serde_json::from_slice(body).unwrap();
        object["metadata"]["uid"] = json!(format!("uid-{}", state.version + 1));
        let object = state.put(object);
        drop(state);
        self.changed.notify_waiters();
        ok(201, &object)
    }

    fn replace(&self, body: &[u8]) -> Response<Body> {
        let sent: Value = serde_json::from_slice(body).unwrap();
        let mut state = self.state.lock().unwrap();
        let Some(current) = &state.object else { return status(404, "NotFound") };
        assert!(sent["metadata"]["resourceVersion"].is_string(), "a write without a version overwrites anything");
        if current["metadata"]["resourceVersion"] != sent["metadata"]["resourceVersion"] {
            return status(409, "Conflict");
        }
        let object = state.put(sent);
        drop(state);
        self.changed.notify_waiters();
        ok(200, &object)
    }
}

impl State {
    fn put(&mut self, mut object: Value) -> Value {
        let kind = if self.object.is_some() { "MODIFIED" } else { "ADDED" };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push((self.version, json!({ "type": kind, "object": object })));
        self.object = Some(object.clone());
        object
    }
}

async fn never() -> Response<Body> {
    let never: Infallible = std::future::pending().await;
    match never {}
}

fn ok(code: u16, value: &Value) -> Response<Body> {
    respond(code, value.to_string().into_bytes())
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
        "message": format!("{reason} ({code})"),
    });
    respond(code, status.to_string().into_bytes())
}

fn respond(code: u16, body: Vec<u8>) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body)).unwrap()
}
