//! `understudy perf`: the load generator as a Job beside the cluster, in its namespace and against its Service. The user's name
//! and password go from the cluster's Secret to the Job and pass nowhere else. The Job is taken away at the end, also when a
//! person interrupts it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};

use futures::io::AsyncReadExt;

use crate::arguments::PerfOptions;
use crate::kubernetes::Kubernetes;

const PROGRAM: &str = "/usr/local/bin/understudy-bench";
const CONTAINER: &str = "bench";
const BROKER_CONTAINER: &str = "broker";
/// For connecting, draining, and deleting the queue.
const BESIDE_THE_LOAD: Duration = Duration::from_secs(120);
/// If nobody takes the Job away the cluster does.
const KEPT_AFTER_SECONDS: u32 = 600;
/// An image is pulled and a pod scheduled by then, or something is wrong that a person has to see to.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Beside the messages that wait for their confirm.
const OWN_MEMORY_BYTES: u64 = 256 << 20;

/// What does not go away by waiting.
const HOPELESS: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

pub(crate) async fn run(options: PerfOptions) -> anyhow::Result<ExitCode> {
    let kubernetes = Kubernetes::reach(&options.reach).await?;
    perform(&kubernetes, &options, &mut std::io::stdout()).await
}

async fn perform(kubernetes: &Kubernetes, options: &PerfOptions, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let seen = kubernetes.cluster(options.name.as_deref()).await?;
    let name = seen.name();
    let job = Plan::read(kubernetes, name, options).await?.job();
    let jobs: Api<Job> = kubernetes.api();
    let parameters = PostParams { dry_run: options.dry_run, ..PostParams::default() };
    let made = jobs.create(&parameters, &serde_json::from_value(job.clone())?).await;
    let made = made.context("the Job cannot be created")?;
    if options.dry_run {
        write!(out, "{}", serde_yaml::to_string(&job)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = made.metadata.name.context("the API server gave the Job no name")?;
    eprintln!(
        "-- Job {job}: {} publishers, {} consumers, {} s --",
        options.publishers, options.consumers, options.duration
    );
    let outcome = tokio::select! {
        outcome = watch(kubernetes, &job, out) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted: a queue called bench-… may be left")),
    };
    let deleted = jobs.delete(&job, &DeleteParams::background()).await;
    if let Err(error) = deleted {
        eprintln!("the Job {job} is not taken away, and goes {KEPT_AFTER_SECONDS} s after its end: {error}");
    }
    outcome
}

/// Prints what it says until its end; its exit code.
async fn watch(kubernetes: &Kubernetes, job: &str, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let started = async {
        loop {
            if let Some(pod) = pod_of(kubernetes, job).await? {
                let container = container(&pod);
                let state = container.and_then(|container| container.state.as_ref());
                if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
                    let (reason, message) = (waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref());
                    if HOPELESS.contains(&reason) {
                        bail!("the load generator does not start: {reason}: {}", message.unwrap_or("no message"));
                    }
                } else if state.is_some() {
                    return Ok(pod);
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let pod = tokio::time::timeout(STARTS_WITHIN, started).await.with_context(|| {
        format!(
            "no pod of Job {job} runs after {} s: `kubectl describe job {job}` and its events say why, while it is there",
            STARTS_WITHIN.as_secs()
        )
    })??;
    let pod = pod.metadata.name.context("the pod has no name")?;
    let api: Api<Pod> = kubernetes.api();
    let parameters = LogParams { container: Some(CONTAINER.into()), follow: true, ..LogParams::default() };
    match api.log_stream(&pod, &parameters).await {
        Ok(stream) => {
            let mut stream = std::pin::pin!(stream);
            let mut bytes = [0; 8192];
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                out.write_all(&bytes[..read])?;
                out.flush()?;
            }
        }
        // Of one that was never there, there is none; why is said below.
        Err(error) => tracing::debug!(%error, "no log"),
    }
    let ended = async {
        loop {
            let pod = api.get(&pod).await?;
            let state = container(&pod).and_then(|container| container.state.as_ref());
            if let Some(terminated) = state.and_then(|state| state.terminated.clone()) {
                return anyhow::Ok(terminated);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let ended = tokio::time::timeout(BESIDE_THE_LOAD, ended).await.context("the load generator does not end")??;
    let reason = ended.reason.unwrap_or_default();
    if matches!(reason.as_str(), "StartError" | "ContainerCannotRun") {
        bail!(
            "the load generator does not start: its image may be without {PROGRAM}, then give another with --image: {}",
            ended.message.unwrap_or(reason)
        );
    }
    match u8::try_from(ended.exit_code) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(_) => Ok(ExitCode::FAILURE),
    }
}

async fn pod_of(kubernetes: &Kubernetes, job: &str) -> anyhow::Result<Option<Pod>> {
    let selected = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}")).limit(1);
    Ok(kubernetes.api::<Pod>().list(&selected).await?.items.into_iter().next())
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == CONTAINER)
}

/// A Job, before it is one.
struct Plan<'a> {
    options: &'a PerfOptions,
    cluster: &'a str,
    namespace: &'a str,
    image: String,
    pull_secrets: Value,
    port: i32,
    suffix: String,
}

impl<'a> Plan<'a> {
    async fn read(kubernetes: &'a Kubernetes, cluster: &'a str, options: &'a PerfOptions) -> anyhow::Result<Self> {
        let service = kubernetes.api::<Service>().get(cluster).await;
        let service = service.with_context(|| format!("the Service {cluster} cannot be read"))?;
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
        let plain = ports.iter().find(|port| port.name.as_deref() == Some("amqp")).map(|port| port.port);
        let port = plain.with_context(|| {
            format!("the Service {cluster} has no port without TLS, and the load generator knows no TLS: set spec.clients.plaintext")
        })?;
        let set = kubernetes.api::<StatefulSet>().get(cluster).await;
        let set = set.with_context(|| format!("the StatefulSet {cluster} cannot be read"))?;
        let template = set.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
        let broker = template.containers.into_iter().find(|container| container.name == BROKER_CONTAINER);
        let image = options.image.clone().or_else(|| broker.and_then(|container| container.image));
        let image = image.context("the brokers' image is not known: give one with --image")?;
        let pull_secrets = serde_json::to_value(template.image_pull_secrets.unwrap_or_default())?;
        let suffix = format!("{:06x}", rand::random::<u32>() & 0xff_ffff);
        Ok(Self { options, cluster, namespace: &kubernetes.namespace, image, pull_secrets, port, suffix })
    }

    fn arguments(&self) -> Vec<String> {
        let PerfOptions { publishers, consumers, size, duration, window, rate, json, .. } = self.options;
        let mut arguments = vec![
            "run".to_owned(),
            format!("--addresses={}.{}.svc:{}", self.cluster, self.namespace, self.port),
            "--user=$(UNDERSTUDY_BENCH_USER)".to_owned(),
            format!("--publishers={publishers}"),
            format!("--consumers={consumers}"),
            format!("--size={size}"),
            format!("--duration={duration}"),
            format!("--window={window}"),
        ];
        arguments.extend(rate.map(|rate| format!("--rate={rate}")));
        arguments.extend(json.then(|| "--json".to_owned()));
        arguments
    }

    fn memory_bytes(&self) -> u64 {
        let options = self.options;
        // Each once with its publisher and once on its way to a consumer.
        let waiting = u64::from(options.publishers) * u64::from(options.window) * u64::from(options.size) * 2;
        OWN_MEMORY_BYTES + waiting
    }

    fn job(&self) -> Value {
        let secret = format!("{}-user", self.cluster);
        let from_secret = |variable: &str, key: &str| json!({ "name": variable, "valueFrom": { "secretKeyRef": { "name": secret, "key": key } } });
        // Not the brokers' labels: no Service leads here.
        let labels = json!({ "app.kubernetes.io/name": "understudy-perf", "app.kubernetes.io/instance": self.cluster });
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": format!("{}-perf-{}", self.cluster, self.suffix), "namespace": self.namespace, "labels": labels,
            },
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": self.options.duration + 2 * BESIDE_THE_LOAD.as_secs(),
                "ttlSecondsAfterFinished": KEPT_AFTER_SECONDS,
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "restartPolicy": "Never",
                        "automountServiceAccountToken": false,
                        "enableServiceLinks": false,
                        "imagePullSecrets": self.pull_secrets,
                        "securityContext": {
                            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "containers": [{
                            "name": CONTAINER,
                            "image": self.image,
                            "command": [PROGRAM],
                            "args": self.arguments(),
                            "env": [
                                from_secret("UNDERSTUDY_BENCH_USER", "username"),
                                from_secret("UNDERSTUDY_BENCH_PASSWORD", "password"),
                            ],
                            "resources": {
                                "requests": { "cpu": "100m", "memory": "64Mi" },
                                "limits": { "cpu": "2", "memory": self.memory_bytes().to_string() },
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                                "capabilities": { "drop": ["ALL"] },
                            },
                        }],
                    },
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use expect_test::expect;

    use super::*;
    use crate::fake_api::FakeApi;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: PerfOptions,
    }

    fn options(line: &str) -> PerfOptions {
        Line::parse_from(line.split(' ')).options
    }

    fn path(api: &str, rest: &str) -> String {
        format!("/{api}/namespaces/shop/{rest}")
    }

    /// Whose Job's pod is in this state as soon as it is looked at.
    fn api(state: Value) -> FakeApi {
        let api = FakeApi::with_cluster("orders");
        let template = json!({"spec": {"containers": [{"name": "broker", "image": "registry/broker:1"}],
                                       "imagePullSecrets": [{"name": "pull"}]}});
        let set = json!({"metadata": {"name": "orders"},
                         "spec": {"selector": {}, "serviceName": "x", "template": template}});
        api.put(&path("apis/apps/v1", "statefulsets/orders"), set);
        let service = json!({"metadata": {"name": "orders"}, "spec": {"ports": [{"name": "amqp", "port": 5672}]}});
        api.put(&path("api/v1", "services/orders"), service);
        let container =
            json!({"name": "bench", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let pod = json!({"metadata": {"name": "load"}, "status": {"containerStatuses": [container]}});
        api.put(&path("api/v1", "pods/load"), pod);
        api.put_text(&path("api/v1", "pods/load/log"), "confirmed 70000 msg/s\n");
        api
    }

    async fn said(api: &FakeApi, line: &str) -> (String, Result<ExitCode, String>) {
        let mut out = Vec::new();
        let outcome = perform(&api.kubernetes(), &options(line), &mut out).await;
        (String::from_utf8(out).unwrap(), outcome.map_err(|error| format!("{error:#}")))
    }

    #[tokio::test]
    async fn a_load_is_run_told_and_taken_away() {
        for (exit, code) in [(0, ExitCode::SUCCESS), (1, ExitCode::FAILURE)] {
            let api = api(json!({"terminated": {"exitCode": exit, "reason": "x"}}));
            let (text, outcome) = said(&api, "perf orders --duration 5").await;
            assert_eq!(text, "confirmed 70000 msg/s\n");
            assert_eq!(format!("{:?}", outcome.unwrap()), format!("{code:?}"));
            assert_eq!(api.first_not_granted(), None);
            let writes = api.take_writes();
            assert!(writes[0].starts_with("POST /apis/batch/v1/namespaces/shop/jobs"), "{writes:?}");
            assert!(writes[1].starts_with("DELETE /apis/batch/v1/namespaces/shop/jobs/orders-perf-"), "{writes:?}");
        }
    }

    #[tokio::test]
    async fn why_none_starts_is_told_and_nothing_is_left() {
        for (state, text) in [
            (
                json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
                "ImagePullBackOff: no such image",
            ),
            (
                json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}),
                "without /usr/local/bin/understudy-bench, then give another with --image: no such file",
            ),
        ] {
            let api = api(state);
            let error = said(&api, "perf").await.1.unwrap_err();
            assert!(error.contains(text), "{error}");
            assert!(api.take_writes()[1].starts_with("DELETE"));
        }
        let api = api(json!({}));
        api.change(&path("api/v1", "services/orders"), |service| service["spec"]["ports"][0]["name"] = "amqps".into());
        let error = said(&api, "perf").await.1.unwrap_err();
        assert!(error.contains("no port without TLS"), "{error}");
        assert_eq!(api.take_writes(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn the_job_keeps_to_the_strictest_level_and_holds_no_password() {
        let api = api(json!({}));
        let (text, _) = said(&api, "perf --dry-run --publishers 2 --rate 100 --size 2000 --json").await;
        let writes = api.take_writes();
        assert!(writes.len() == 1 && writes[0].contains("dryRun=All"), "{writes:?}");
        let name = text.lines().find_map(|line| line.strip_prefix("  name: orders-perf-")).unwrap();
        expect![[r#"
            apiVersion: batch/v1
            kind: Job
            metadata:
              labels:
                app.kubernetes.io/instance: orders
                app.kubernetes.io/name: understudy-perf
              name: orders-perf-NAME
              namespace: shop
            spec:
              activeDeadlineSeconds: 250
              backoffLimit: 0
              template:
                metadata:
                  labels:
                    app.kubernetes.io/instance: orders
                    app.kubernetes.io/name: understudy-perf
                spec:
                  automountServiceAccountToken: false
                  containers:
                  - args:
                    - run
                    - --addresses=orders.shop.svc:5672
                    - --user=$(UNDERSTUDY_BENCH_USER)
                    - --publishers=2
                    - --consumers=1
                    - --size=2000
                    - --duration=10
                    - --window=500
                    - --rate=100
                    - --json
                    command:
                    - /usr/local/bin/understudy-bench
                    env:
                    - name: UNDERSTUDY_BENCH_USER
                      valueFrom:
                        secretKeyRef:
                          key: username
                          name: orders-user
                    - name: UNDERSTUDY_BENCH_PASSWORD
                      valueFrom:
                        secretKeyRef:
                          key: password
                          name: orders-user
                    image: registry/broker:1
                    name: bench
                    resources:
                      limits:
                        cpu: '2'
                        memory: '272435456'
                      requests:
                        cpu: 100m
                        memory: 64Mi
                    securityContext:
                      allowPrivilegeEscalation: false
                      capabilities:
                        drop:
                        - ALL
                      readOnlyRootFilesystem: true
                  enableServiceLinks: false
                  imagePullSecrets:
                  - name: pull
                  restartPolicy: Never
                  securityContext:
                    runAsGroup: 65532
                    runAsNonRoot: true
                    runAsUser: 65532
                    seccompProfile:
                      type: RuntimeDefault
              ttlSecondsAfterFinished: 600
        "#]]
        .assert_eq(&text.replace(name, "NAME"));
    }
}
