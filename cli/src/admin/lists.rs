//! What there is, as tables for people or as JSON, each with the same fields.

use std::process::ExitCode;

use serde_json::{Value, json};
use understudy_proto::{Definitions, HashAlgorithm, PolicyDefinition};

use crate::status::columns;
use understudy_definitions::from_arguments;

pub(super) struct List {
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
    json: Vec<Value>,
}

pub(super) fn print(as_json: bool, list: &List) -> anyhow::Result<ExitCode> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(&list.json)?);
    } else {
        let titles = list.titles.iter().map(|title| (*title).to_owned()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(titles).chain(list.rows.iter().cloned()).collect();
        print!("{}", columns(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

pub(super) fn vhosts(definitions: &Definitions) -> List {
    let rows = definitions.vhosts.iter().map(|vhost| {
        let (connections, queues) = (limit(vhost.max_connections), limit(vhost.max_queues));
        vec![vhost.name.clone(), vhost.description.clone(), vhost.tags.join(","), connections, queues]
    });
    let json = definitions.vhosts.iter().map(|vhost| {
        json!({
            "name": vhost.name, "description": vhost.description, "tags": vhost.tags,
            "maxConnections": vhost.max_connections, "maxQueues": vhost.max_queues,
        })
    });
    let titles = &["NAME", "DESCRIPTION", "TAGS", "MAX-CONNECTIONS", "MAX-QUEUES"];
    List { titles, rows: rows.collect(), json: json.collect() }
}

/// Without what passwords hash to. The users of a broker's `--users` file are not in the log, and not here.
pub(super) fn users(definitions: &Definitions) -> List {
    let password = |user: &understudy_proto::UserDefinition| match user.algorithm() {
        _ if user.password_hash.is_empty() => "none",
        HashAlgorithm::Argon2id => "argon2id",
        HashAlgorithm::RabbitSha256 => "sha256",
        HashAlgorithm::RabbitSha512 => "sha512",
        HashAlgorithm::Unspecified => "unknown",
    };
    let guest = definitions.open_guest.then(|| {
        vec![
            "guest".to_owned(),
            "administrator".to_owned(),
            "guest (with --open-guest)".into(),
            limit(None),
            limit(None),
        ]
    });
    let rows = definitions.users.iter().map(|user| {
        let (connections, channels) = (limit(user.max_connections), limit(user.max_channels));
        vec![user.name.clone(), user.tags.join(","), password(user).to_owned(), connections, channels]
    });
    let guest_json = definitions.open_guest.then(|| {
        json!({
            "name": "guest", "tags": ["administrator"], "password": "open",
            "maxConnections": null, "maxChannels": null,
        })
    });
    let json = definitions.users.iter().map(|user| {
        json!({
            "name": user.name, "tags": user.tags, "password": password(user),
            "maxConnections": user.max_connections, "maxChannels": user.max_channels,
        })
    });
    let titles = &["NAME", "TAGS", "PASSWORD", "MAX-CONNECTIONS", "MAX-CHANNELS"];
    List { titles, rows: guest.into_iter().chain(rows).collect(), json: guest_json.into_iter().chain(json).collect() }
}

pub(super) fn permissions(definitions: &Definitions, user: Option<&str>, vhost: Option<&str>, topics: bool) -> List {
    let is_of = |of_user: &str, of_vhost: &str| {
        user.is_none_or(|user| user == of_user) && vhost.is_none_or(|vhost| vhost == of_vhost)
    };
    let quoted = |pattern: &str| format!("'{pattern}'");
    if topics {
        let of: Vec<_> = definitions.topic_permissions.iter().filter(|it| is_of(&it.user, &it.vhost)).collect();
        let rows = of.iter().map(|it| {
            let exchange = String::from_utf8_lossy(&it.exchange).into_owned();
            vec![it.user.clone(), it.vhost.clone(), exchange, quoted(&it.write), quoted(&it.read)]
        });
        let json = of.iter().map(|it| {
            let exchange = String::from_utf8_lossy(&it.exchange);
            json!({"user": it.user, "vhost": it.vhost, "exchange": exchange, "write": it.write, "read": it.read})
        });
        let titles = &["USER", "VHOST", "EXCHANGE", "WRITE", "READ"];
        return List { titles, rows: rows.collect(), json: json.collect() };
    }
    let of: Vec<_> = definitions.permissions.iter().filter(|it| is_of(&it.user, &it.vhost)).collect();
    let rows = of
        .iter()
        .map(|it| vec![it.user.clone(), it.vhost.clone(), quoted(&it.configure), quoted(&it.write), quoted(&it.read)]);
    let json = of.iter().map(
        |it| json!({"user": it.user, "vhost": it.vhost, "configure": it.configure, "write": it.write, "read": it.read}),
    );
    let titles = &["USER", "VHOST", "CONFIGURE", "WRITE", "READ"];
    List { titles, rows: rows.collect(), json: json.collect() }
}

pub(super) fn limits(definitions: &Definitions) -> List {
    let vhosts = definitions.vhosts.iter().flat_map(|vhost| {
        let of = |name, value: Option<u64>| value.map(|value| ("vhost", vhost.name.clone(), name, value));
        [of("max-connections", vhost.max_connections), of("max-queues", vhost.max_queues)]
    });
    let users = definitions.users.iter().flat_map(|user| {
        let of = |name, value: Option<u64>| value.map(|value| ("user", user.name.clone(), name, value));
        [of("max-connections", user.max_connections), of("max-channels", user.max_channels)]
    });
    let all: Vec<_> = vhosts.chain(users).flatten().collect();
    let rows = all
        .iter()
        .map(|(kind, of, name, value)| vec![(*kind).to_owned(), of.clone(), (*name).to_owned(), value.to_string()]);
    let json = all.iter().map(|(kind, of, name, value)| json!({"of": kind, "name": of, "limit": name, "value": value}));
    List { titles: &["OF", "NAME", "LIMIT", "VALUE"], rows: rows.collect(), json: json.collect() }
}

pub(super) fn policies(definitions: &Definitions, vhost: Option<&str>, operator: bool) -> List {
    let is_of = |it: &&PolicyDefinition| it.operator == operator && vhost.is_none_or(|vhost| vhost == it.vhost);
    let of: Vec<_> = definitions.policies.iter().filter(is_of).collect();
    let definition = |it: &PolicyDefinition| Value::Object(from_arguments(&it.definition));
    let rows = of.iter().map(|it| {
        let (pattern, priority) = (format!("'{}'", it.pattern), it.priority.to_string());
        vec![it.vhost.clone(), it.name.clone(), pattern, it.apply_to.clone(), priority, definition(it).to_string()]
    });
    let json = of.iter().map(|it| {
        json!({
            "vhost": it.vhost, "name": it.name, "pattern": it.pattern, "applyTo": it.apply_to,
            "priority": it.priority, "definition": definition(it),
        })
    });
    let titles = &["VHOST", "NAME", "PATTERN", "APPLY-TO", "PRIORITY", "DEFINITION"];
    List { titles, rows: rows.collect(), json: json.collect() }
}
