//! A process that stands aside: its store belongs to a newer build, or a person keeps it out. It opens nothing, follows nobody and
//! serves no client. It says so to whoever asks, and stays until it is told to end, since another process could do no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use understudy_proto::control_server::ControlServer;

use crate::peers::{ControlService, Tls, server_builder};
use understudy_node::{ControlEvent, Event};

/// How often it shows that it lives. A process that does not for 30 s is taken for stuck.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Answers that are on their way get so long.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Why it does.
pub(crate) enum Aside {
    Outdated(String),
    Fenced,
}

/// Until it is told to end.
///
/// # Errors
/// If it cannot even say so.
pub(crate) async fn stand_aside(
    why: Aside,
    control: ControlService,
    tls: &Tls,
    grpc: TcpListener,
    heartbeat: Arc<AtomicU64>,
    mut inbox: mpsc::Receiver<Event>,
) -> anyhow::Result<()> {
    let started: Instant = control.started;
    let reason = match why {
        Aside::Outdated(reason) => {
            tracing::error!("{reason}");
            control.shared.set_outdated(reason.clone());
            reason
        }
        Aside::Fenced => {
            tracing::warn!("fenced: this replica takes part in nothing until a person lets it in again");
            control.shared.set_fenced();
            "this replica is fenced".to_owned()
        }
    };
    let router = server_builder().add_service(ControlServer::new(control));
    let (end, ends) = oneshot::channel::<()>();
    let served = router.serve_with_incoming_shutdown(tls.incoming(grpc), async { _ = ends.await });
    let served = tokio::spawn(served);
    let mut tick = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            _ = tick.tick() => heartbeat.store(started.elapsed().as_millis() as u64, Ordering::Relaxed),
            event = inbox.recv() => match event {
                Some(Event::Control(ControlEvent::HandOver { reply, .. })) => _ = reply.send(Err(reason.clone())),
                Some(Event::Control(ControlEvent::Administer(_, reply))) => _ = reply.send(Err(reason.clone())),
                Some(Event::Control(ControlEvent::ReadDefinitions { reply, .. })) => {
                    _ = reply.send(Err(reason.clone()));
                }
                Some(Event::Control(ControlEvent::Shutdown)) | None => break,
                Some(_) => {}
            },
        }
    }
    // Whoever asked for it is answered; who watches would watch for ever.
    drop(end);
    _ = tokio::time::timeout(LAST_WORDS, served).await;
    Ok(())
}
