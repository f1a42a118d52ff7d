//! What is known to go wrong with operators elsewhere, case by case, and where it is shown that it does not here. `e2e/run` closes
//! with the table.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use understudy_e2e::Outcome;

struct Case {
    number: u8,
    what: &'static str,
    /// Tests on a cluster, by the names that they give their namespaces.
    tests: &'static [&'static str],
    /// Tests elsewhere, or what else a person may look at: a file, and a text in it.
    elsewhere: &'static [(&'static str, &'static str)],
}

const CASES: [Case; 24] = [
    Case { number: 2, what: "nothing is written while idle", tests: &["idle"], elsewhere: &[] },
    Case { number: 3, what: "a bad image, and the right one", tests: &["bad_image"], elsewhere: &[] },
    Case {
        number: 5,
        what: "clocks an hour off",
        tests: &["lease_contended"],
        // A container has no clock of its own, but a process can be given one.
        elsewhere: &[("broker/tests/it/clocks.rs", "an_hour_between_clocks_changes_nothing")],
    },
    Case {
        number: 6,
        what: "Lease contended, API server away",
        tests: &["lease_contended", "api_outage", "api_outage_primary_lost", "api_outage_backup_lost"],
        elsewhere: &[],
    },
    Case { number: 7, what: "cold start, a backup is Ready", tests: &["applied", "all_deleted"], elsewhere: &[] },
    Case {
        number: 8,
        what: "a roll: backups first, hand-over",
        tests: &["rolling"],
        elsewhere: &[("operator/src/failover/roll.rs", "fn never_below_min_in_sync")],
    },
    Case { number: 9, what: "a node is drained", tests: &["drained", "single"], elsewhere: &[] },
    Case { number: 10, what: "a namespace goes", tests: &["namespace"], elsewhere: &[] },
    Case {
        number: 11,
        what: "another cluster of the same name",
        tests: &["recreated"],
        elsewhere: &[
            ("operator/tests/apply.rs", "what_belongs_to_another_cluster_of_the_name_is_left_alone"),
            ("operator/src/earlier.rs", "pods_are_waited_for_and_then_the_lease_goes"),
        ],
    },
    Case {
        number: 12,
        what: "a quota is in the way",
        tests: &["quota"],
        elsewhere: &[("operator/tests/objects.rs", "requests_and_limits_are_always_set")],
    },
    Case { number: 13, what: "a password is rotated", tests: &["password"], elsewhere: &[] },
    Case {
        number: 14,
        what: "CRD and operator are upgraded",
        tests: &["upgraded"],
        elsewhere: &[("operator/tests/apply.rs", "a_volume_that_grows_makes_another_stateful_set")],
    },
    Case {
        number: 15,
        what: "a failover goes forward",
        tests: &["stopped_moves", "node_with_operator_frozen", "operator_away"],
        elsewhere: &[],
    },
    Case { number: 16, what: "a hung primary delays nothing", tests: &["hung", "node_frozen"], elsewhere: &[] },
    Case {
        number: 17,
        what: "liveness is local",
        tests: &["api_outage"],
        elsewhere: &[("operator/tests/objects.rs", "probes_are_local")],
    },
    Case {
        number: 18,
        what: "who was left behind is not promoted",
        tests: &["backup_parted"],
        elsewhere: &[("broker/replication/tests/model/main.rs", "stateright")],
    },
    Case {
        number: 19,
        what: "a lost node, before it is NotReady",
        tests: &["node_frozen", "node_with_operator_frozen", "node_cut_off"],
        elsewhere: &[],
    },
    Case {
        number: 20,
        what: "certificates and their authority change",
        tests: &["certificates"],
        elsewhere: &[
            ("broker/src/peers/tls.rs", "a_new_authority_is_taken_up_as_it_comes"),
            ("operator/src/build/certificates.rs", "a_new_authority_is_trusted_before_it_issues_and_the_old_one_after"),
        ],
    },
    Case { number: 21, what: "primary's pod and volume deleted", tests: &["primary_volume_lost"], elsewhere: &[] },
    Case { number: 22, what: "the primary's address changes", tests: &["pod_deleted"], elsewhere: &[] },
    Case { number: 23, what: "a pod ends in bounded time", tests: &["no_successor", "single_ends"], elsewhere: &[] },
    Case {
        number: 24,
        what: "operator killed within a resize",
        tests: &["stopped_sizes"],
        elsewhere: &[("operator/tests/objects.rs", "storage_grows_by_its_claims")],
    },
    Case { number: 25, what: "probes by role", tests: &["probes"], elsewhere: &[] },
    Case {
        number: 26,
        what: "a switchover is of one epoch, once",
        tests: &["switchover", "switchover_cli"],
        elsewhere: &[(
            "broker/tests/it/switchover.rs",
            "what_cannot_be_handed_over_is_refused_with_the_reason_and_not_noticed_by_clients",
        )],
    },
];

/// 4 was given to nothing.
#[test]
fn every_case_is_in_the_table() {
    let numbers: Vec<u8> = CASES.iter().map(|case| case.number).collect();
    let expected: Vec<u8> = (2..=26).filter(|number| *number != 4).collect();
    assert_eq!(numbers, expected);
    for case in &CASES {
        assert!(!case.tests.is_empty() || !case.elsewhere.is_empty(), "K{} is shown nowhere", case.number);
    }
}

#[test]
fn what_the_table_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = std::fs::read_dir(root.join("tests/cluster")).unwrap();
    let own = own.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("cases.rs"));
    let sources: String = own.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    for case in &CASES {
        for test in case.tests {
            assert!(sources.contains(&format!("(\"{test}\"")), "K{}: no test is called {test}", case.number);
        }
        for (file, text) in case.elsewhere {
            let source = std::fs::read_to_string(root.join("..").join(file)).unwrap_or_default();
            assert!(source.contains(text), "K{}: there is no {text:?} in {file}", case.number);
        }
    }
}

/// The last one: prints the table, of the outcomes that the tests before it have left. Each of those has failed by itself if it did.
#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_closing_table() {
    if let Some(outcomes) = Outcome::read_all().unwrap() {
        print!("{}", table(&outcomes));
    }
}

fn table(outcomes: &[Outcome]) -> String {
    // A test that was run twice is what it was last.
    let outcomes: BTreeMap<&str, &Outcome> = outcomes.iter().map(|outcome| (outcome.test.as_str(), outcome)).collect();
    let mut text = format!("\n{:<4} {:<40} {:<9} {:>5}  shown by\n", "case", "", "", "s");
    for case in &CASES {
        let ran: Vec<&&Outcome> = case.tests.iter().filter_map(|test| outcomes.get(test)).collect();
        let word = match ran.len() == case.tests.len() {
            _ if ran.iter().any(|outcome| !outcome.passed) => "FAILED",
            true if ran.is_empty() => "elsewhere",
            true => "passed",
            false => "not run",
        };
        let took: f32 = ran.iter().map(|outcome| outcome.took.as_secs_f32()).sum();
        let elsewhere = case.elsewhere.iter().map(|(file, text)| format!("{file}: {text}"));
        let by: Vec<String> = case.tests.iter().map(|test| (*test).to_owned()).chain(elsewhere).collect();
        text += &format!("K{:<3} {:<40} {word:<9} {took:>5.0}  {}\n", case.number, case.what, by.join(", "));
    }
    text
}

#[test]
fn the_table_tells_what_ran_and_what_did_not() {
    let outcome = |test: &str, passed, secs| Outcome { test: test.into(), passed, took: Duration::from_secs(secs) };
    let table = table(&[
        outcome("idle", true, 31),
        outcome("bad_image", false, 9),
        outcome("drained", true, 40),
        outcome("single", true, 20),
    ]);
    let line = |case: &str| table.lines().find(|line| line.starts_with(case)).unwrap().to_owned();
    assert!(line("K2 ").contains("passed       31  idle"), "{table}");
    assert!(line("K3 ").contains("FAILED        9  bad_image"), "{table}");
    assert!(line("K9 ").contains("passed       60  drained, single"), "{table}");
    assert!(line("K10 ").contains("not run"), "{table}");
    assert_eq!(table.lines().filter(|line| line.starts_with('K')).count(), CASES.len());
}
