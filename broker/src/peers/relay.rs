//! Any broker is a door: a client that reaches a backup is relayed to the primary over the peers' own connection, so the
//! primary knows that the client's address was given by a replica and not by anyone.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use understudy_proto as wire;
use understudy_proto::replica_client::ReplicaClient;

use super::{MAX_MESSAGE_BYTES, Tls};
use crate::amqp::{Amqp, Peer, part};

/// What is read from one side before it is passed on.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces on their way in one direction; fullness reaches the sender's socket.
const PIECES_IN_FLIGHT: usize = 16;

/// Passes a client's bytes to the primary at `address` and back, until either side ends. `first` says who the client is.
///
/// `opened` is called once the primary has taken it.
///
/// # Errors
/// Where the primary does not take it: the client's connection, nothing read from it, and why.
pub(crate) async fn relay<S: AsyncRead + AsyncWrite + Send + Unpin>(
    client: S,
    tls: &Tls,
    address: &str,
    first: wire::RelayBytes,
    opened: impl FnOnce(),
) -> Result<(), (S, String)> {
    let (sender, answer) = match open(tls, address, first).await {
        Ok(stream) => stream,
        Err(reason) => return Err((client, reason)),
    };
    opened();
    let (mut reading, mut writing) = tokio::io::split(client);
    let upward = async {
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
        while reading.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {
            let data = buffer.split().freeze();
            if sender.send(wire::RelayBytes { data, ..wire::RelayBytes::default() }).await.is_err() {
                return;
            }
            buffer.reserve(PIECE_BYTES);
        }
    };
    let downward = async {
        let mut answer = answer;
        while let Ok(Some(piece)) = answer.message().await {
            // TLS holds octets back until it is told not to.
            if writing.write_all(&piece.data).await.is_err() || writing.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upward => {}
        () = downward => {}
    }
    part(&mut reading, &mut writing).await;
    Ok(())
}

type Opened = (mpsc::Sender<wire::RelayBytes>, Streaming<wire::RelayBytes>);

async fn open(tls: &Tls, address: &str, first: wire::RelayBytes) -> Result<Opened, String> {
    let channel = tls.connect(address).await.map_err(|error| error.to_string())?;
    let mut replica = ReplicaClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (sender, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    sender.send(first).await.map_err(|error| error.to_string())?;
    let answer = replica.relay(ReceiverStream::new(pieces)).await.map_err(|status| status.message().to_owned())?;
    Ok((sender, answer.into_inner()))
}

/// The primary's end: serves the relayed client like one of its own.
pub(super) fn serve_relayed(
    amqp: &Arc<Amqp>,
    client: Peer,
    first: Bytes,
    mut incoming: Streaming<wire::RelayBytes>,
) -> impl Stream<Item = Result<wire::RelayBytes, Status>> + Send + 'static {
    let (outer, inner) = tokio::io::duplex(PIECE_BYTES * 4);
    let (mut reading, mut writing): (tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>) =
        tokio::io::split(outer);
    tokio::spawn(amqp.clone().serve(inner, client));
    tokio::spawn(async move {
        if writing.write_all(&first).await.is_err() {
            return;
        }
        while let Ok(Some(piece)) = incoming.message().await {
            if writing.write_all(&piece.data).await.is_err() {
                return;
            }
        }
        _ = writing.shutdown().await;
    });
    let (sender, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    tokio::spawn(async move {
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
        while reading.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {
            let data = buffer.split().freeze();
            if sender.send(wire::RelayBytes { data, ..wire::RelayBytes::default() }).await.is_err() {
                return;
            }
            buffer.reserve(PIECE_BYTES);
        }
    });
    ReceiverStream::new(pieces).map(Ok)
}
