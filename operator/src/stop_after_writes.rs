//! For tests alone: a process that ends right after its n-th write to the API server, as one that is killed there would. The
//! answer has arrived, and nobody here has heard of it; what else is on its way may arrive or not.
//!
//! Only writes that the API server took count: what it refuses has changed nothing. Reads and watches never do. Without
//! `UNDERSTUDY_STOP_AFTER_WRITES` there is no such layer.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{Layer, Service};

/// The exit status, unlike that of any other end.
const EXIT_STATUS: i32 = 86;

/// A client whose n-th write is the process's last.
///
/// # Errors
/// If there is no way to an API server.
pub(crate) async fn client(writes: NonZeroU32) -> anyhow::Result<Client> {
    let config = Config::infer().await?;
    let layer = StopAfterWrites::new(writes, |write| {
        tracing::warn!(write, "the last write of this process");
        // No destructor runs, no task is waited for.
        std::process::exit(EXIT_STATUS)
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Calls `stop` with the n-th write, before whoever sent it hears of the answer.
#[derive(Clone)]
struct StopAfterWrites {
    left: Arc<AtomicU32>,
    stop: Arc<dyn Fn(&str) + Send + Sync>,
}

impl StopAfterWrites {
    fn new(writes: NonZeroU32, stop: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { left: Arc::new(AtomicU32::new(writes.get())), stop: Arc::new(stop) }
    }
}

impl<S> Layer<S> for StopAfterWrites {
    type Service = Stopping<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Stopping { rule: self.clone(), inner }
    }
}

struct Stopping<S> {
    rule: StopAfterWrites,
    inner: S,
}

impl<S, B> Service<Request<Body>> for Stopping<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_write = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE);
        let write = is_write.then(|| format!("{} {}", request.method(), request.uri().path()));
        let (rule, answer) = (self.rule.clone(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            if let (Some(write), Ok(response)) = (write, &answer)
                && response.status().is_success()
                && rule.left.fetch_sub(1, Ordering::Relaxed) == 1
            {
                (rule.stop)(&write);
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn the_nth_write_that_is_taken_is_the_last() {
        let stopped: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = stopped.clone();
        let layer = StopAfterWrites::new(NonZeroU32::new(2).unwrap(), move |write: &str| {
            told.lock().unwrap().push(write.to_owned());
        });
        let api = || {
            let answer = |request: Request<Body>| async move {
                let code = if request.uri().path() == "/refused" { 409 } else { 201 };
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::empty()).unwrap())
            };
            layer.layer(service_fn(answer))
        };
        let told = async |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            // Each request has a service of its own, as clones of a client do: they count together.
            api().oneshot(request).await.unwrap();
            std::mem::take(&mut *stopped.lock().unwrap())
        };
        assert!(told("POST", "/first").await.is_empty());
        assert!(told("GET", "/read").await.is_empty());
        assert!(told("PUT", "/refused").await.is_empty());
        assert_eq!(told("PATCH", "/second?force=true").await, ["PATCH /second"]);
        assert!(told("DELETE", "/third").await.is_empty(), "it stops once");
    }
}
