//! What there was when a test failed, written to files: objects, events, the logs of all containers that ever ran.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// Where dumps go; `e2e/run` sets it and prints the tails.
const FOLDER_VARIABLE: &str = "UNDERSTUDY_E2E_DUMPS";

/// Each file of a dump, and the command whose output it holds.
fn commands(namespace: &str) -> Vec<(&'static str, Vec<String>)> {
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    vec![
        ("objects.txt", words(&format!("get all,brokerclusters,leases,endpointslices,pvc -o wide -n {namespace}"))),
        (
            "cluster.yaml",
            words(&format!("get brokerclusters,leases,endpointslices,statefulsets -o yaml -n {namespace}")),
        ),
        ("pods.txt", words(&format!("describe pods -n {namespace}"))),
        ("events.txt", words(&format!("get events --sort-by=.lastTimestamp -n {namespace}"))),
        ("nodes.txt", words("describe nodes")),
        ("operator.log", words("logs -n understudy-system deployment/understudy-operator --tail=2000")),
    ]
}

pub(crate) fn folder() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE).map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Failures to dump are in the dump.
pub(crate) async fn write(test: &str, namespace: &str) {
    let folder = folder().join(test);
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("no dump of {test}: {}: {error}", folder.display());
        return;
    }
    for (file, arguments) in commands(namespace) {
        kubectl(&folder.join(file), &arguments).await;
    }
    let listed = Command::new("kubectl").args(["get", "pods", "-o", "name", "-n", namespace]).output().await;
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pod in listed.lines() {
        let name = pod.trim_start_matches("pod/");
        for (suffix, previous) in [("log", "--previous=false"), ("previous.log", "--previous=true")] {
            let arguments = ["logs", "-n", namespace, name, "-c", "broker", previous, "--tail=5000"];
            kubectl(&folder.join(format!("{name}.{suffix}")), &arguments.map(str::to_owned)).await;
        }
    }
    eprintln!("{test}: dump in {}", folder.display());
}

async fn kubectl(file: &Path, arguments: &[String]) {
    let output = Command::new("kubectl").args(["--request-timeout=10s"]).args(arguments).output().await;
    let text = match output {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(error) => format!("kubectl {}: {error}", arguments.join(" ")).into_bytes(),
    };
    if let Err(error) = std::fs::write(file, text) {
        eprintln!("{}: {error}", file.display());
    }
}
