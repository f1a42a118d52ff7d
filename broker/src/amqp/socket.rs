//! A client's socket, or what TLS makes of it: reading, writing, and how one parts from it. It knows no AMQP.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long the last words may take to reach a client that does not read, and the client to hang up.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Says that nothing more comes, and reads on until the client has said so, too: to end while its octets still arrive resets
/// the connection, and takes from it what it was told last.
pub(crate) async fn part<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(reading: &mut R, writing: &mut W) {
    let goodbye = async {
        let mut rest = [0; 4096];
        if writing.shutdown().await.is_ok() {
            while matches!(reading.read(&mut rest).await, Ok(1..)) {}
        }
    };
    _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
}

/// Since when the client could have taken something and has not. One that is not read because publishers must wait may be
/// busy with just that, and read nothing: no fault of its own.
#[derive(Default)]
pub(super) struct Untaken(Option<Instant>);

impl Untaken {
    pub(super) fn since(&mut self, waits: bool) -> Option<Instant> {
        self.0 = if waits { self.0.or_else(|| Some(Instant::now())) } else { None };
        self.0
    }
}

#[derive(PartialEq, Eq)]
pub(super) enum Written {
    /// There is more, or TLS holds something back: once more.
    Some,
    All,
}

/// Writes some of it; if there is nothing to write, what TLS holds back of earlier octets. Nothing is lost if the future is
/// dropped.
pub(super) async fn write_some<W: AsyncWrite + Unpin>(to: &mut W, output: &mut impl Buf) -> std::io::Result<Written> {
    if !output.has_remaining() {
        return to.flush().await.map(|()| Written::All);
    }
    if to.write_buf(output).await? == 0 {
        return Err(std::io::ErrorKind::WriteZero.into());
    }
    if output.has_remaining() {
        return Ok(Written::Some);
    }
    // Not waited for: what was written above must be told by now.
    match std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *to).poll_flush(context))).await {
        Poll::Ready(flushed) => flushed.map(|()| Written::All),
        Poll::Pending => Ok(Written::Some),
    }
}

pub(super) async fn read_some<R: AsyncRead + Unpin>(
    from: &mut R,
    buffer: &mut BytesMut,
    wanted: usize,
) -> std::io::Result<usize> {
    if buffer.capacity() - buffer.len() < wanted / 4 {
        buffer.reserve(wanted);
    }
    from.read_buf(buffer).await
}

/// Nothing is lost if the future is dropped.
pub(super) async fn write_all_of<W: AsyncWrite + Unpin>(to: &mut W, output: &mut impl Buf) -> std::io::Result<()> {
    while let Written::Some = write_some(to, output).await? {}
    Ok(())
}

pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
