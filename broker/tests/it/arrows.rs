//! Who may depend on whom: the arrows of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Each crate with the crates of this workspace it may use, and whether it is pure.
const ARROWS: &[(&str, &[&str], bool)] = &[
    ("understudy-record", &[], true),
    ("understudy-protocol", &["understudy-record"], true),
    ("understudy-core", &["understudy-protocol", "understudy-record"], true),
    ("understudy-journal", &["understudy-record"], false),
    ("understudy-election", &["understudy-record"], true),
    ("understudy-replication", &["understudy-election", "understudy-record"], true),
    ("understudy-lease", &["understudy-election", "understudy-record"], false),
    ("understudy-proto", &["understudy-election", "understudy-record"], false),
    (
        "understudy-node",
        &[
            "understudy-core",
            "understudy-election",
            "understudy-journal",
            "understudy-record",
            "understudy-replication",
        ],
        false,
    ),
    (
        "understudy-sim",
        &[
            "understudy-core",
            "understudy-election",
            "understudy-journal",
            "understudy-node",
            "understudy-record",
            "understudy-replication",
        ],
        false,
    ),
    (
        "understudy-broker",
        &[
            "understudy-core",
            "understudy-election",
            "understudy-journal",
            "understudy-lease",
            "understudy-node",
            "understudy-proto",
            "understudy-protocol",
            "understudy-record",
            "understudy-replication",
        ],
        false,
    ),
    ("understudy-definitions", &["understudy-proto", "understudy-protocol", "understudy-record"], false),
    ("understudy-crds", &[], false),
    (
        "understudy-operator",
        &[
            "understudy-crds",
            "understudy-definitions",
            "understudy-election",
            "understudy-lease",
            "understudy-proto",
            "understudy-record",
        ],
        false,
    ),
    (
        "understudy",
        &[
            "understudy-bench",
            "understudy-crds",
            "understudy-definitions",
            "understudy-election",
            "understudy-lease",
            "understudy-proto",
            "understudy-record",
        ],
        false,
    ),
    ("understudy-bench", &["understudy-journal", "understudy-protocol", "understudy-record"], false),
    ("understudy-e2e", &["understudy-bench", "understudy-crds", "understudy-proto", "understudy-record"], false),
];

/// What a pure crate must not know.
const IMPURE: &[&str] = &["tokio", "tonic", "kube", "k8s-openapi", "axum", "hyper-util", "futures", "libc", "tracing"];

#[test]
fn every_crate_depends_on_what_it_may_and_no_more() {
    let dependencies = dependencies();
    let known: BTreeSet<_> = ARROWS.iter().map(|(name, _, _)| (*name).to_owned()).collect();
    assert_eq!(known, dependencies.keys().cloned().collect(), "every crate of the workspace has its line in ARROWS");
    for (name, allowed, pure) in ARROWS {
        let used = &dependencies[*name];
        let ours: BTreeSet<_> = used.iter().filter(|other| known.contains(*other)).map(String::as_str).collect();
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        assert!(ours.is_subset(&allowed), "{name} uses {:?}, which it may not", ours.difference(&allowed));
        if *pure {
            let impure: Vec<_> = used.iter().filter(|other| IMPURE.contains(&other.as_str())).collect();
            assert!(impure.is_empty(), "{name} is a pure crate and uses {impure:?}");
        }
    }
}

/// Normal dependencies of each crate of the workspace, by name.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path", manifest];
    let output = Command::new(env!("CARGO")).args(arguments).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages").iter().map(|package| {
        let normal = package["dependencies"].as_array().expect("dependencies").iter();
        let normal = normal.filter(|dependency| dependency["kind"].is_null());
        (text(&package["name"]), normal.map(|dependency| text(&dependency["name"])).collect())
    });
    packages.collect()
}
