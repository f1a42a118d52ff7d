//! The alerts and the dashboard name metrics that are there, in expressions that Prometheus understands, and sections of the
//! documentation that are there. What needs promtool and a scrape is ignored unless `make monitoring-check` runs it, with
//! `PROMTOOL` and `SCRAPE`, a file.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rules() -> Vec<Value> {
    let object: Value = serde_yaml::from_str(&read("manifests/monitoring/rules.yaml")).unwrap();
    let groups = object["spec"]["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap()
}

/// Of panels and annotations, with Grafana's variables as it fills them in.
fn dashboard_expressions() -> Vec<String> {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|field| walk(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&dashboard(), &mut found);
    found.iter().map(|text| text.replace("$__rate_interval", "1m").replace("$__range", "1h")).collect()
}

fn metrics_in(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.split(word).filter(|word| word.starts_with("understudy_")).map(str::to_owned).collect()
}

/// GitHub's.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_alert_says_what_to_do() {
    let troubleshooting = read("docs/troubleshooting.md");
    let anchors: BTreeSet<String> = troubleshooting
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect();
    let tests = read("manifests/monitoring/rules.test.yaml");
    let rules = rules();
    assert!(rules.len() >= 16);
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        for text in ["summary", "description", "runbook_url"] {
            assert!(rule["annotations"][text].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {text}");
        }
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        let (page, section) = rule["annotations"]["runbook_url"].as_str().unwrap().split_once('#').unwrap();
        assert!(page.ends_with("/docs/troubleshooting.md"), "{name}: {page}");
        assert!(anchors.contains(section), "{name}: docs/troubleshooting.md has no section {section}");
        assert!(troubleshooting.contains(name), "docs/troubleshooting.md does not name {name}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} is not tested");
    }
}

/// In the documentation and from the README: files, and sections of Markdown.
#[test]
fn every_link_leads_somewhere() {
    let sections = |path: &Path| -> BTreeSet<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
    };
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut links = 0;
    for page in pages.chain([root().join("README.md")]).filter(|page| page.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            links += 1;
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            assert!(section.is_empty() || sections(&target).contains(section), "{}: {link}", page.display());
        }
    }
    assert!(links > 60, "{links}");
}

/// Every word for machines that a condition may say has its line.
#[test]
fn every_reason_of_a_condition_is_explained() {
    let troubleshooting = read("docs/troubleshooting.md");
    let sources = ["operator/src/status/conditions.rs", "operator/src/controller.rs", "operator/src/failover/roll.rs"];
    let conditions: BTreeSet<&str> =
        ["Available", "Durable", "Ready", "Progressing", "ControlPlaneReachable", "Stalled", "Reconciling", "Delete"]
            .into();
    let mut reasons = BTreeSet::new();
    for source in sources.map(read) {
        let code = source.split("#[cfg(test)]").next().unwrap().to_owned();
        let quoted = code.split('"').skip(1).step_by(2);
        let is_word = |text: &&str| {
            text.len() > 3
                && text.starts_with(|c: char| c.is_ascii_uppercase())
                && text.chars().all(|c| c.is_ascii_alphanumeric())
        };
        reasons.extend(quoted.filter(is_word).map(str::to_owned));
    }
    let election = read("broker/election/src/reason.rs");
    for name in ["WaitReason", "BlockedReason"] {
        let start = election.find(&format!("impl {name} {{")).unwrap();
        let body = &election[start..start + election[start..].find("\n}\n").unwrap()];
        reasons.extend(body.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    reasons.retain(|reason| !conditions.contains(reason.as_str()) && reason != "StatefulSet");
    assert!(reasons.len() > 30, "{reasons:?}");
    let unexplained: Vec<_> =
        reasons.iter().filter(|reason| !troubleshooting.contains(&format!("`{reason}`"))).collect();
    assert_eq!(unexplained, Vec::<&String>::new(), "add them to docs/troubleshooting.md");
}

#[test]
#[ignore = "needs a scrape"]
fn every_metric_that_is_asked_for_is_there() {
    let scrape = std::fs::read_to_string(std::env::var("SCRAPE").expect("use `make monitoring-check`")).unwrap();
    let known: BTreeSet<&str> =
        scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let asked = metrics_in(&rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect::<String>());
    let shown = metrics_in(&(dashboard_expressions().join("\n") + &dashboard()["templating"].to_string()));
    assert!(asked.len() >= 12 && shown.len() >= 20, "{asked:?} {shown:?}");
    for metric in asked.union(&shown) {
        let name = metric.strip_suffix("_bucket").unwrap_or(metric);
        assert!(known.contains(name), "{metric} is in no scrape");
    }
    for metric in metrics_in(&read("docs/troubleshooting.md")).union(&metrics_in(&read("docs/monitoring.md"))) {
        assert!(
            known.iter().any(|known| known.starts_with(metric.as_str())),
            "{metric} of the documentation is in no scrape"
        );
    }
}

#[test]
#[ignore = "needs promtool"]
fn prometheus_understands_the_dashboard() {
    let mut text = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, expression) in dashboard_expressions().iter().enumerate() {
        writeln!(text, "      - record: panel_{number}\n        expr: {}", Value::from(expression.as_str())).unwrap();
    }
    let file = std::env::temp_dir().join(format!("understudy-dashboard-{}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let promtool = std::env::var("PROMTOOL").expect("use `make monitoring-check`");
    let output = Command::new(promtool).args(["check", "rules"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
