//! When a broker that was started is ready: asked over and over, as a client and as a cluster would.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use understudy_protocol::queue;

use super::queues::{open, passive};
use crate::link::LinkError;
use crate::target::{QueuePlan, Target};

/// Between two tries. A try at a port where nobody listens costs next to nothing.
const PAUSE: Duration = Duration::from_millis(5);
/// For one answer of the health endpoint.
const HEALTH_ATTEMPT: Duration = Duration::from_secs(1);
/// A status line is shorter.
const MAX_ANSWER_BYTES: usize = 64;
/// A broker's metrics are a few kilobytes.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// When the first of the addresses said that the queue is there; `None` if none did within the limit.
pub(super) async fn amqp(target: &Target, queue: &QueuePlan, limit: Duration) -> Option<Instant> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        let asking = async {
            let mut link = open(target).await?;
            let method = passive(queue).ok_or(LinkError::QueueName)?;
            link.request(method, queue::DeclareOk::ID).await?;
            let at = Instant::now();
            link.close().await;
            Ok::<_, LinkError>(at)
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if let Ok(Ok(at)) = tokio::time::timeout(left, asking).await {
            return Some(at);
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}

/// When `host:port` answered `/readyz` with 200; `None` if it did not within the limit.
pub(super) async fn health(address: &str, limit: Duration) -> Option<Instant> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Ok(Ok(true)) = tokio::time::timeout(HEALTH_ATTEMPT, is_healthy(address)).await {
            return Some(Instant::now());
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}

async fn is_healthy(address: &str) -> io::Result<bool> {
    Ok(ask(address, "/readyz", MAX_ANSWER_BYTES).await?.starts_with(b"HTTP/1.1 200 "))
}

/// What `host:port` says at that path, headers included.
pub(super) async fn get(address: &str, path: &str) -> io::Result<String> {
    let answer = tokio::time::timeout(HEALTH_ATTEMPT, ask(address, path, MAX_PAGE_BYTES)).await??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn ask(address: &str, path: &str, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(max_bytes as u64).read_to_end(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn health_waits_until_it_is_200() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answering = tokio::spawn(async move {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 256];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\nreading the log").as_bytes()).await.unwrap();
            }
        });
        assert!(health(&address, Duration::from_secs(20)).await.is_some());
        answering.await.unwrap();
        assert_eq!(health(&address, Duration::from_millis(20)).await, None, "nobody listens any more");
    }
}
