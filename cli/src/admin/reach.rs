//! The primary's `Control` service, wherever the cluster is: on this machine by its directory, in Kubernetes through
//! `kubectl port-forward` and with the certificate of the cluster's Secret. It says what is asked and hands back what is
//! answered; a primary that has changed meanwhile is looked for again.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;
use understudy_proto::control_client::ControlClient;
use understudy_proto::{self as proto, AdminChange, AdminOutcome};

use crate::arguments::ReachOptions;
use crate::cluster_file::ClusterFile;
use crate::control::{self, Tls};
use crate::kubernetes::Kubernetes;
use crate::status::ask_all;

/// In one request: the broker takes no more than five times as many.
const CHANGES_PER_REQUEST: usize = 200;
/// Until what was changed is on every replica in sync.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Somebody else may move the role at the same time, or a failover is under way: then it is looked for again.
const MAX_LOOKS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// `kubectl` says where it listens as soon as the API server has answered.
const FORWARDED_WITHIN: Duration = Duration::from_secs(15);
/// A broker's gRPC port in its pod.
const GRPC_PORT: u16 = 7672;

/// Which cluster, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Local(PathBuf),
    Kubernetes { reach: ReachOptions, name: String },
}

struct Primary {
    client: ControlClient<Channel>,
    /// Ends with this.
    _forward: Option<Forward>,
}

/// A running `kubectl port-forward`.
struct Forward {
    address: std::net::SocketAddr,
    _child: Child,
    /// It says something for each connection, and would end if nobody were there to hear it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Place {
    /// One outcome for each change, in their order.
    pub(super) async fn administer(&self, changes: &[AdminChange]) -> anyhow::Result<Vec<AdminOutcome>> {
        let mut outcomes = Vec::new();
        for changes in changes.chunks(CHANGES_PER_REQUEST) {
            let request = proto::AdministerRequest { changes: changes.to_vec() };
            let reply = self.ask(async |mut client| client.administer(request.clone()).await).await?;
            outcomes.extend(reply.outcomes);
        }
        Ok(outcomes)
    }

    /// `topology`: with exchanges, queues and bindings.
    pub(super) async fn definitions(&self, topology: bool) -> anyhow::Result<proto::Definitions> {
        let request = proto::ReadDefinitionsRequest { topology };
        self.ask(async |mut client| {
            let mut parts = client.read_definitions(request).await?.into_inner();
            let mut whole = proto::Definitions::default();
            while let Some(part) = parts.message().await? {
                whole.open_guest |= part.open_guest;
                whole.vhosts.extend(part.vhosts);
                whole.users.extend(part.users);
                whole.permissions.extend(part.permissions);
                whole.topic_permissions.extend(part.topic_permissions);
                whole.policies.extend(part.policies);
                whole.exchanges.extend(part.exchanges);
                whole.queues.extend(part.queues);
                whole.bindings.extend(part.bindings);
            }
            Ok(tonic::Response::new(whole))
        })
        .await
    }

    async fn ask<T>(
        &self,
        call: impl AsyncFn(ControlClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> anyhow::Result<T> {
        let mut refusal = None;
        for _ in 0..MAX_LOOKS {
            if refusal.is_some() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let primary = match self.primary().await {
                Ok(primary) => primary,
                Err(error) => {
                    refusal = Some(error);
                    continue;
                }
            };
            match timeout(ANSWER_WITHIN, call(primary.client)).await {
                Ok(Ok(reply)) => return Ok(reply.into_inner()),
                // It has done nothing: it is not the primary any more, or is about not to be.
                Ok(Err(status)) if status.code() == Code::FailedPrecondition => {
                    refusal = Some(anyhow::anyhow!("{}", status.message()));
                }
                Ok(Err(status)) => bail!("{}", status.message()),
                Err(_) => bail!(
                    "no answer within {} s: it is done as soon as enough replicas are in sync, see `understudy status`",
                    ANSWER_WITHIN.as_secs()
                ),
            }
        }
        Err(refusal.unwrap_or_else(|| anyhow::anyhow!("no broker serves as primary")))
    }

    async fn primary(&self) -> anyhow::Result<Primary> {
        match self {
            Self::Local(dir) => {
                let file = ClusterFile::read(dir)?;
                let tls = Tls::read(&file.tls_dir)?;
                let answers = ask_all(&file, &tls).await;
                let heard = file.brokers.iter().zip(&answers).filter_map(|(broker, answer)| {
                    let status = answer.as_ref().ok().filter(|status| status.role() == proto::Role::Primary)?;
                    Some((broker, status.epoch))
                });
                let (broker, _) = heard.max_by_key(|(_, epoch)| *epoch).context("no broker serves as primary now")?;
                Ok(Primary { client: control::client(broker.grpc, &tls)?, _forward: None })
            }
            Self::Kubernetes { reach, name } => forwarded(reach, name).await,
        }
    }
}

async fn forwarded(reach: &ReachOptions, name: &str) -> anyhow::Result<Primary> {
    let kubernetes = Kubernetes::reach(reach).await?;
    let cluster = kubernetes.cluster(Some(name)).await?;
    let pod = cluster.primary().context("no pod serves as primary now")?;
    let secrets: Api<Secret> = kubernetes.api();
    let secret = format!("{name}-tls");
    let found = secrets.get(&secret).await.with_context(|| format!("the Secret {secret} cannot be read"))?;
    let field = |field: &str| {
        let value = found.data.as_ref().and_then(|data| data.get(field));
        value.map(|value| value.0.clone()).with_context(|| format!("the Secret {secret} has no {field}"))
    };
    let tls = Tls::of(&field("ca.crt")?, &field("tls.crt")?, &field("tls.key")?);
    let forward = forward(reach, &kubernetes.namespace, pod).await?;
    Ok(Primary { client: control::client(forward.address, &tls)?, _forward: Some(forward) })
}

async fn forward(reach: &ReachOptions, namespace: &str, pod: &str) -> anyhow::Result<Forward> {
    let target = format!("pod/{pod}");
    let mut command = Command::new("kubectl");
    if let Some(context) = &reach.context {
        command.arg("--context").arg(context);
    }
    if let Some(kubeconfig) = &reach.kubeconfig {
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    let mut child = command
        .args(["port-forward", "--namespace", namespace, "--address", "127.0.0.1", &target, &format!(":{GRPC_PORT}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("kubectl, by which the pod is reached, cannot be started")?;
    let output = child.stdout.take().context("kubectl says nothing")?;
    let mut output = BufReader::new(output).lines();
    let line = timeout(FORWARDED_WITHIN, output.next_line()).await;
    let line = line.context("kubectl port-forward says nothing")??.context("kubectl port-forward has ended")?;
    let address = forwarded_from(&line).with_context(|| format!("kubectl port-forward says {line:?}"))?;
    Ok(Forward { address, _child: child, _output: output })
}

/// Of a line like `Forwarding from 127.0.0.1:40123 -> 7672`.
fn forwarded_from(line: &str) -> Option<std::net::SocketAddr> {
    line.strip_prefix("Forwarding from ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_kubectl_listens_is_read_from_its_first_line() {
        let address = forwarded_from("Forwarding from 127.0.0.1:40123 -> 7672").unwrap();
        assert_eq!(address, ([127, 0, 0, 1], 40123).into());
        assert_eq!(forwarded_from("error: unable to listen"), None);
    }
}
