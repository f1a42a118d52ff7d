//! What the parse makes of specs, by table.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::time::Duration;

use expect_test::{Expect, expect};
use understudy_crds::{Amount, BrokerCluster, Replicate, ValidatedCluster};

fn cluster(spec: &str) -> BrokerCluster {
    let spec = spec.lines().map(|line| format!("  {line}\n")).collect::<String>();
    let yaml = format!(
        "apiVersion: understudy.dev/v1alpha1\nkind: BrokerCluster\nmetadata: {{name: orders, namespace: shop, uid: u-1, generation: 4}}\nspec:\n{spec}"
    );
    serde_yaml::from_str(&yaml).unwrap()
}

fn parse(spec: &str) -> ValidatedCluster {
    ValidatedCluster::parse(&cluster(spec)).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn refused(spec: &str, expected: Expect) {
    let error = ValidatedCluster::parse(&cluster(spec)).expect_err(spec);
    expected.assert_eq(&error.to_string());
}

#[test]
fn an_empty_spec_is_a_cluster_of_three() {
    let parsed = parse("{}");
    expect![[r#"
        ValidatedCluster {
            name: ClusterName(
                "orders",
            ),
            namespace: "shop",
            uid: "u-1",
            generation: Some(
                4,
            ),
            replicas: 3,
            min_in_sync: 2,
            image: None,
            image_pull_policy: IfNotPresent,
            image_pull_secrets: [],
            durability: Fsync,
            storage_size: Amount(
                "8Gi",
            ),
            storage_class: None,
            retention: Retention {
                when_deleted: Retain,
                when_scaled: Retain,
            },
            disk_free_watermark: None,
            resources: ResourceAmounts {
                requests: {
                    "cpu": Amount(
                        "200m",
                    ),
                    "memory": Amount(
                        "512Mi",
                    ),
                },
                limits: {
                    "cpu": Amount(
                        "2",
                    ),
                    "memory": Amount(
                        "1Gi",
                    ),
                },
            },
            memory_budget: None,
            memory_watermark: 80,
            scheduling: Scheduling {
                spread: Preferred,
                node_selector: {},
                tolerations: [],
                topology_spread_constraints: [],
                affinity: None,
                priority_class_name: None,
            },
            affinity: None,
            pod_template: PodTemplate {
                metadata: Metadata {
                    labels: {},
                    annotations: {},
                },
                spec: None,
            },
            service: Service {
                kind: ClusterIp,
                annotations: {},
                labels: {},
                external_traffic_policy: None,
                load_balancer_class: None,
                load_balancer_source_ranges: [],
                amqp_port: None,
                amqps_port: None,
            },
            service_ports: ServicePorts {
                amqp: 5672,
                amqps: 5671,
            },
            clients: ClientSettings {
                backup_connections: Relay,
                tls: None,
                plaintext: true,
                max_connections: None,
                max_channels_per_connection: None,
                max_message_size: None,
                consumer_timeout: None,
                login_failure_delay: None,
                sasl_mechanisms: [],
                sasl_tls_only: [],
            },
            broker: BrokerOptions {
                segment_bytes: None,
                checkpoint_bytes: None,
                checkpoint_rate: None,
                resume_records: None,
                scrub_interval: None,
                handshake_timeout: None,
                accept_differences: false,
            },
            users_secret: None,
            definitions: None,
            failover: FailoverTimes {
                lease_duration: 5s,
                backup_timeout: 2s,
                stall_timeout: 10s,
            },
            promotion: Automatic,
            update: Automatic,
            update_windows: UpdateWindows(
                [],
            ),
            pod_monitor: None,
            network_policy: true,
            orders: Orders {
                paused: false,
                hibernated: false,
                maintenance: false,
                fenced: {},
            },
            preferred_primary: None,
            forced_recovery: None,
            switchover_to: None,
            forced_primary: None,
            catch_up_bandwidth: None,
            max_catch_ups: 1,
            replicate: All,
        }
    "#]]
    .assert_debug_eq(&parsed);
}

#[test]
fn min_in_sync_follows_replicas_where_it_is_absent() {
    for (spec, expected) in
        [("replicas: 1", 1), ("replicas: 2", 2), ("replicas: 5", 2), ("{replicas: 5, minInSync: 4}", 4)]
    {
        assert_eq!(parse(spec).min_in_sync, expected, "{spec}");
    }
}

#[test]
fn times_are_read() {
    let times = parse("failover: {leaseDuration: 1m, backupTimeout: 500ms, stallTimeout: 3s}").failover;
    assert_eq!(times.lease_duration, Duration::from_secs(60));
    assert_eq!(times.backup_timeout, Duration::from_millis(500));
    assert_eq!(times.stall_timeout, Duration::from_secs(3));
}

/// A quota refuses a container that leaves a request or a limit open.
#[test]
fn requests_and_limits_are_both_set_whatever_is_given() {
    let table = [
        ("resources: {requests: {cpu: 4}}", ["4", "512Mi", "4", "1Gi"]),
        ("resources: {requests: {memory: 100Mi}}", ["200m", "100Mi", "2", "1Gi"]),
        ("resources: {limits: {cpu: 100m, memory: 4Gi}}", ["100m", "512Mi", "100m", "4Gi"]),
        ("resources: {requests: {memory: 2Gi}, limits: {memory: 2Gi}}", ["200m", "2Gi", "2", "2Gi"]),
    ];
    for (spec, [cpu, memory, cpu_limit, memory_limit]) in table {
        let resources = parse(spec).resources;
        assert_eq!(resources.requests["cpu"], Amount::new(cpu), "{spec}");
        assert_eq!(resources.requests["memory"], Amount::new(memory), "{spec}");
        assert_eq!(resources.limits["cpu"], Amount::new(cpu_limit), "{spec}");
        assert_eq!(resources.limits["memory"], Amount::new(memory_limit), "{spec}");
    }
}

#[test]
fn watermarks_and_the_budget_become_bytes() {
    let parsed = parse(
        "{storage: {size: 20Gi, freeWatermark: 1Gi}, memory: {budget: 256Mi, watermarkPercent: 70}, resources: {limits: {memory: 512Mi}}}",
    );
    assert_eq!(parsed.disk_free_watermark, Some(1 << 30));
    assert_eq!((parsed.memory_budget, parsed.memory_watermark), (Some(256 << 20), 70));
    assert_eq!(parse("storage: {freeWatermark: 0}").disk_free_watermark, Some(0));
}

#[test]
fn impossible_values_are_refused_with_cause_and_cure() {
    refused("replicas: 0", expect!["spec.replicas is 0: choose 1 to 9"]);
    refused("replicas: 300", expect!["spec.replicas is 300: choose 1 to 9"]);
    refused(
        "{replicas: 2, minInSync: 3}",
        expect!["spec.minInSync is 3 with spec.replicas 2: choose 1 to 2, or no message could ever be confirmed"],
    );
    refused(
        "minInSync: 0",
        expect!["spec.minInSync is 0 with spec.replicas 3: choose 1 to 3, or no message could ever be confirmed"],
    );
    refused(
        "storage: {size: 8gigs}",
        expect![[
            r#"spec.storage.size: "8gigs" is not a quantity (write a number and an optional unit, like 500m, 2 or 8Gi)"#
        ]],
    );
    refused("storage: {size: 0}", expect!["spec.storage.size is zero: give it a size"]);
    refused(
        "resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}",
        expect!["spec.resources: the request for memory, 2Gi, is greater than its limit, 1Gi"],
    );
    refused("resources: {limits: {cpu: 0}}", expect!["spec.resources.limits.cpu is zero: give it a size"]);
    refused(
        "resources: {limits: {cpu: many}}",
        expect![[
            r#"spec.resources.limits.cpu: "many" is not a quantity (write a number and an optional unit, like 500m, 2 or 8Gi)"#
        ]],
    );
    refused(
        "storage: {size: 1Gi, freeWatermark: 513Mi}",
        expect![
            "spec.storage.freeWatermark is 513Mi with spec.storage.size 1Gi: choose at most half of it, or publishers would hardly ever go on"
        ],
    );
    refused(
        "storage: {freeWatermark: some}",
        expect![[
            r#"spec.storage.freeWatermark: "some" is not a quantity (write a number and an optional unit, like 500m, 2 or 8Gi)"#
        ]],
    );
    refused("memory: {watermarkPercent: 101}", expect!["spec.memory.watermarkPercent is 101: choose 10 to 100"]);
    refused("memory: {watermarkPercent: 0}", expect!["spec.memory.watermarkPercent is 0: choose 10 to 100"]);
    refused("memory: {budget: 0}", expect!["spec.memory.budget is zero: give it a size"]);
    refused(
        "memory: {budget: 820Mi}",
        expect![
            "spec.memory.budget is 820Mi: choose less than 80 % (spec.memory.watermarkPercent) of the memory limit, 1Gi, or publishers would wait for ever"
        ],
    );
    refused(
        "failover: {leaseDuration: '5'}",
        expect![[r#"spec.failover.leaseDuration "5" is not a time: write a whole number and ms, s or m, like 500ms"#]],
    );
    refused(
        "failover: {leaseDuration: 99999999999999999999m}",
        expect![[
            r#"spec.failover.leaseDuration "99999999999999999999m" is not a time: write a whole number and ms, s or m, like 500ms"#
        ]],
    );
    refused(
        "failover: {backupTimeout: 1ms}",
        expect!["spec.failover.backupTimeout is 1ms: choose between 200ms and 300s"],
    );
    refused(
        "failover: {leaseDuration: 1s}",
        expect![
            "spec.failover.backupTimeout is longer than spec.failover.leaseDuration: a lost backup would hold confirms for longer than a lost primary would"
        ],
    );
    refused(
        "primary: {preferred: orders-3}",
        expect![[r#"spec.primary.preferred "orders-3" is none of the cluster's pods: orders-0 to orders-2"#]],
    );
}

#[test]
fn names_that_do_not_fit_are_refused() {
    for name in ["", "9lives", "Orders", "orders-", "or.ders", "orders_1", &"o".repeat(41)] {
        let mut cluster = cluster("{}");
        cluster.metadata.name = Some(name.to_owned());
        assert!(ValidatedCluster::parse(&cluster).is_err(), "{name}");
    }
    let mut longest = cluster("{}");
    longest.metadata.name = Some("o".repeat(40));
    assert!(ValidatedCluster::parse(&longest).is_ok());
}

#[test]
fn a_forced_recovery_names_its_epoch() {
    let with = |text: &str| {
        let mut cluster = cluster("{}");
        cluster.metadata.annotations = Some([("understudy.dev/force-recovery".to_owned(), text.to_owned())].into());
        ValidatedCluster::parse(&cluster)
    };
    assert_eq!(with("7").unwrap().forced_recovery, Some(7));
    expect![[r#"annotation understudy.dev/force-recovery is "true": give the epoch that the status shows, a number"#]]
        .assert_eq(&with("true").unwrap_err().to_string());
}

#[test]
fn requests_by_annotation_are_kept_as_they_are() {
    let mut cluster = cluster("{}");
    let annotations = [("understudy.dev/switchover", " orders-1 "), ("understudy.dev/force-primary", "elsewhere")];
    cluster.metadata.annotations = Some(annotations.map(|(key, text)| (key.to_owned(), text.to_owned())).into());
    let parsed = ValidatedCluster::parse(&cluster).unwrap();
    assert_eq!(parsed.switchover_to.as_deref(), Some("orders-1"));
    assert_eq!(parsed.forced_primary.as_deref(), Some("elsewhere"));
}

#[test]
fn replication_has_its_limits() {
    let parsed = parse("replication: {catchUpBandwidth: 50Mi, maxCatchUps: 2, default: configuration}");
    assert_eq!((parsed.catch_up_bandwidth, parsed.max_catch_ups), (Some(50 << 20), 2));
    assert_eq!(parsed.replicate, Replicate::Configuration);
    refused(
        "replication: {catchUpBandwidth: 0}",
        expect![["spec.replication.catchUpBandwidth is zero: give it a size"]],
    );
    refused("replication: {maxCatchUps: 0}", expect![["spec.replication.maxCatchUps is 0: choose 1 to 8"]]);
}

#[test]
fn what_clients_meet() {
    let parsed = parse(
        "clients: {plaintext: Refuse, tls: {}, maxConnections: 10, maxMessageSize: 1Mi, consumerTimeout: 0s, loginFailureDelay: 250ms}\n\
         service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], externalTrafficPolicy: Local, amqpsPort: 443}",
    );
    let clients = parsed.clients;
    assert!(!clients.plaintext && clients.tls.is_some());
    assert_eq!((clients.max_connections, clients.max_message_size), (Some(10), Some(1 << 20)));
    assert_eq!(clients.consumer_timeout, Some(Duration::ZERO));
    assert_eq!(clients.login_failure_delay, Some(Duration::from_millis(250)));
    assert_eq!((parsed.service_ports.amqp, parsed.service_ports.amqps), (5672, 443));
    refused(
        "clients: {plaintext: Refuse}",
        expect![
            "spec.clients.plaintext is Refuse and there is no spec.clients.tls: no client could come in; add tls, or serve plaintext"
        ],
    );
    refused(
        "clients: {tls: {secretName: a, issuer: {name: b}}}",
        expect!["spec.clients.tls has secretName and issuer: leave one of them out"],
    );
    refused(
        "clients: {tls: {clientCertificates: Required}}",
        expect![
            "spec.clients.tls.clientCertificates is Required and there is no clientAuthority to judge them by: name its Secret"
        ],
    );
    refused("clients: {tls: {dnsNames: [\"a b\"]}}", expect![[r#"spec.clients.tls.dnsNames: "a b" is no host name"#]]);
    refused("clients: {maxConnections: 0}", expect!["spec.clients.maxConnections is 0: choose 1 to 1048576"]);
    refused(
        "clients: {maxMessageSize: 2Gi}",
        expect!["spec.clients.maxMessageSize is 2147483648: choose 1 to 536870912"],
    );
    refused(
        "clients: {loginFailureDelay: 31s}",
        expect!["spec.clients.loginFailureDelay is 31s: choose between 0ns and 30s"],
    );
    refused(
        "service: {externalTrafficPolicy: Local}",
        expect![
            "spec.service.externalTrafficPolicy is for the types NodePort and LoadBalancer: change spec.service.type, or leave it out"
        ],
    );
    refused(
        "service: {loadBalancerClass: fast}",
        expect![
            "spec.service.loadBalancerClass is for the types LoadBalancer: change spec.service.type, or leave it out"
        ],
    );
    refused("service: {amqpPort: 5671}", expect!["spec.service.amqpPort and amqpsPort are both 5671: choose two"]);
}

#[test]
fn what_pods_are_to_be() {
    let parsed = parse(
        "scheduling: {affinity: {nodeAffinity: {}}, tolerations: [{key: a, operator: Exists}], topologySpreadConstraints: [{topologyKey: zone}]}\n\
         podTemplate: {metadata: {labels: {team: shop}}, spec: {containers: [{name: broker, env: [{name: A, value: b}]}, {name: side, image: x}]}}",
    );
    assert!(parsed.affinity.is_some_and(|affinity| affinity.node_affinity.is_some()));
    assert_eq!(parsed.scheduling.topology_spread_constraints[0].max_skew, 1);
    refused(
        "scheduling: {affinity: {nodeAffinity: 7}}",
        expect![
            "spec.scheduling.affinity is not what a pod's spec has there: invalid type: integer `7`, expected NodeAffinity"
        ],
    );
    refused(
        "podTemplate: {metadata: {labels: {app.kubernetes.io/name: x}}}",
        expect!["spec.podTemplate.metadata.labels[app.kubernetes.io/name] is the operator's own: leave it out"],
    );
    refused(
        "podTemplate: {metadata: {annotations: {understudy.dev/role: x}}}",
        expect!["spec.podTemplate.metadata.annotations[understudy.dev/role] is the operator's own: leave it out"],
    );
    refused(
        "podTemplate: {spec: {containers: [{name: broker, args: []}]}}",
        expect!["spec.podTemplate.spec.containers[broker].args is the operator's own: leave it out"],
    );
    refused(
        "podTemplate: {spec: {hostNetwork: maybe}}",
        expect![[
            r#"spec.podTemplate.spec is not what a pod's spec has there: invalid type: string "maybe", expected a boolean"#
        ]],
    );
}

#[test]
fn what_annotations_order() {
    let ordered = |pairs: &[(&str, &str)]| {
        let mut object = cluster("replicas: 2");
        let pairs = pairs.iter().map(|(key, value)| (format!("understudy.dev/{key}"), (*value).to_owned()));
        object.metadata.annotations = Some(pairs.collect());
        ValidatedCluster::parse(&object).map(|cluster| cluster.orders).map_err(|error| error.to_string())
    };
    let orders = ordered(&[("reconcile", "paused"), ("hibernation", " on"), ("maintenance", "on")]);
    let orders = orders.unwrap();
    assert!(orders.paused && orders.hibernated && orders.maintenance);
    let fenced = ordered(&[("fenced", "orders-0, orders-1,")]).unwrap().fenced;
    assert_eq!(fenced.into_iter().collect::<Vec<_>>(), ["orders-0", "orders-1"]);
    let error = |pairs| ordered(pairs).unwrap_err();
    expect![[r#"annotation understudy.dev/fenced names "orders-2", which is none of the cluster's pods"#]]
        .assert_eq(&error(&[("fenced", "orders-2")]));
    expect![[r#"annotation understudy.dev/reconcile is "off": it knows paused; take it off for the opposite"#]]
        .assert_eq(&error(&[("reconcile", "off")]));
    expect![[r#"annotation understudy.dev/hibernation is "yes": it knows on; take it off for the opposite"#]]
        .assert_eq(&error(&[("hibernation", "yes")]));
}

#[test]
fn the_brokers_options_in_its_own_units() {
    let parsed = parse(
        "broker: {segmentSize: 16Mi, checkpointRate: 1Gi, scrubInterval: 0s, handshakeTimeout: 1500ms, resumeRecords: 0}",
    );
    let broker = parsed.broker;
    assert_eq!(
        (broker.segment_bytes, broker.checkpoint_rate, broker.resume_records),
        (Some(16 << 20), Some(1 << 30), Some(0))
    );
    assert_eq!(
        (broker.scrub_interval, broker.handshake_timeout),
        (Some(Duration::ZERO), Some(Duration::from_millis(1500)))
    );
    assert_eq!((broker.checkpoint_bytes, broker.accept_differences), (None, false));
    refused("broker: {segmentSize: 10}", expect!["spec.broker.segmentSize is 10: choose 1048576 to 1073741824"]);
    refused(
        "broker: {checkpointSize: many}",
        expect![[
            r#"spec.broker.checkpointSize: "many" is not a quantity (write a number and an optional unit, like 500m, 2 or 8Gi)"#
        ]],
    );
    refused("broker: {resumeRecords: -1}", expect!["spec.broker.resumeRecords is -1: choose 0 to 2147483647"]);
    refused(
        "broker: {handshakeTimeout: 10m}",
        expect!["spec.broker.handshakeTimeout is 10m: choose between 1s and 120s"],
    );
    refused(
        "update: {windows: [{start: '2:00', duration: 60m}]}",
        expect![[
            r#"spec.update.windows.start "2:00" is not a time of the day: write hours and minutes of UTC, like 02:30"#
        ]],
    );
}
