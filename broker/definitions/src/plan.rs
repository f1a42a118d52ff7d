//! A file becomes changes, and a line for every entry that becomes none.

use serde::Deserialize;
use serde_json::{Map, Value};
use understudy_proto::admin_change::Change;
use understudy_proto::admin_outcome::Kind;
use understudy_proto::limit_change::Of;
use understudy_proto::{
    AdminChange, AdminOutcome, BindingDefinition, ExchangeDefinition, HashAlgorithm, Limit, LimitChange,
    PermissionDefinition, PolicyDefinition, QueueDefinition, TopicPermissionDefinition, UserDefinition,
    VhostDefinition,
};

use crate::entries::{
    BindingEntry, ExchangeEntry, NamedEntry, PermissionEntry, PolicyEntry, PolicyValue, QueueEntry,
    TopicPermissionEntry, UserEntry, VhostEntry,
};
use crate::json::to_arguments;
use crate::{OWN_ALGORITHM, Report, SHA256, SHA512, hash};

/// Sections that say something of the file, or of the broker that wrote it.
const ABOUT: [&str; 9] = [
    "rabbit_version",
    "rabbitmq_version",
    "rabbitmq_definition_format",
    "product_name",
    "product_version",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
    "metadata",
];

/// What a file asks for.
#[derive(Debug, Default)]
pub struct Plan {
    /// Each with what it is of.
    changes: Vec<(String, Change)>,
    not_taken: Vec<String>,
}

/// `vhost`: of entries that do not say, in a file of one virtual host. `has_open_guest`: there is a user `guest` that nobody
/// has made, which ends when the file brings users.
///
/// # Errors
/// If it is no file of definitions at all.
pub fn plan(text: &[u8], vhost: &str, has_open_guest: bool) -> Result<Plan, serde_json::Error> {
    let mut sections: Map<String, Value> = serde_json::from_slice(text)?;
    let mut plan = Plan::default();
    // In this order: users after virtual hosts, what users may do after both, bindings last.
    plan.section(&mut sections, "vhosts", |plan, entry: VhostEntry| plan.vhost(entry));
    let before = plan.changes.len();
    plan.section(&mut sections, "users", |plan, entry: UserEntry| plan.user(entry));
    let users = plan.changes[before..].iter().any(|(_, change)| matches!(change, Change::PutUser(_)));
    let guest = |change: &Change| matches!(change, Change::PutUser(user) if user.name == "guest");
    if users && has_open_guest && !plan.changes.iter().any(|(_, change)| guest(change)) {
        plan.push(
            "user 'guest' with the password 'guest', which ends with the first users",
            Change::DeleteUser("guest".into()),
        );
    }
    plan.section(&mut sections, "permissions", |plan, entry: PermissionEntry| {
        let PermissionEntry { user, vhost: of, configure, write, read } = entry;
        let vhost = of.unwrap_or_else(|| vhost.to_owned());
        let what = format!("permission of user '{user}' in vhost '{vhost}'");
        plan.push(what, Change::SetPermission(PermissionDefinition { user, vhost, configure, write, read }));
        Ok(())
    });
    plan.section(&mut sections, "topic_permissions", |plan, entry: TopicPermissionEntry| {
        let TopicPermissionEntry { user, vhost: of, exchange, write, read } = entry;
        let vhost = of.unwrap_or_else(|| vhost.to_owned());
        let what = format!("topic permission of user '{user}' in vhost '{vhost}' at exchange '{exchange}'");
        let exchange = exchange.into_bytes().into();
        plan.push(what, Change::SetTopicPermission(TopicPermissionDefinition { user, vhost, exchange, write, read }));
        Ok(())
    });
    plan.section(&mut sections, "parameters", |plan, entry: NamedEntry| {
        let component = entry.component.unwrap_or_default();
        let of = entry.vhost.unwrap_or_else(|| vhost.to_owned());
        if component == "vhost-limits" {
            return plan.limits(&Of::Vhost(of), &entry.value);
        }
        // As `rabbitmqctl export_definitions` writes them.
        if component == "operator_policy" {
            let value = serde_json::from_value(entry.value);
            let value = value.map_err(|error| format!("operator policy '{}' in vhost '{of}': {error}", entry.name))?;
            return plan.policy(of, true, entry.name, value);
        }
        Err(format!("parameter '{}' of component '{component}' in vhost '{of}': not supported yet", entry.name))
    });
    plan.section(&mut sections, "global_parameters", |_, entry: NamedEntry| {
        Err(format!("global parameter '{}': not supported yet", entry.name))
    });
    plan.section(&mut sections, "policies", |plan, entry: PolicyEntry| {
        let (name, of) = (entry.name, entry.vhost.unwrap_or_else(|| vhost.to_owned()));
        plan.policy(of, false, name, entry.value)
    });
    plan.section(&mut sections, "exchanges", |plan, entry: ExchangeEntry| plan.exchange(vhost, entry));
    plan.section(&mut sections, "queues", |plan, entry: QueueEntry| plan.queue(vhost, entry));
    plan.section(&mut sections, "bindings", |plan, entry: BindingEntry| plan.binding(vhost, entry));
    for (name, _) in sections.into_iter().filter(|(name, _)| !ABOUT.contains(&name.as_str())) {
        plan.not_taken.push(format!("section '{name}': not known here"));
    }
    Ok(plan)
}

impl Plan {
    fn push(&mut self, what: impl Into<String>, change: Change) {
        self.changes.push((what.into(), change));
    }

    /// Each entry of a section that is there.
    fn section<T: for<'a> Deserialize<'a>>(
        &mut self,
        sections: &mut Map<String, Value>,
        name: &str,
        take: impl Fn(&mut Self, T) -> Result<(), String>,
    ) {
        let entries = match sections.remove(name) {
            None => return,
            Some(Value::Array(entries)) => entries,
            Some(_) => return self.not_taken.push(format!("section '{name}': no list")),
        };
        for entry in entries {
            let taken = match serde_json::from_value(entry.clone()) {
                Ok(entry) => take(self, entry),
                Err(error) => Err(format!("an entry of '{name}' that makes no sense ({error}): {entry}")),
            };
            if let Err(why) = taken {
                self.not_taken.push(why);
            }
        }
    }

    fn vhost(&mut self, entry: VhostEntry) -> Result<(), String> {
        let VhostEntry { name, description, tags, mut metadata, limits } = entry;
        let described = metadata.remove("description").and_then(|text| text.as_str().map(str::to_owned));
        let description = description.or(described).unwrap_or_default();
        let tags = if tags.is_null() { metadata.remove("tags").unwrap_or_default() } else { tags };
        let tags = tags_of(&tags);
        let vhost = VhostDefinition { name: name.clone(), description, tags, ..VhostDefinition::default() };
        self.push(format!("vhost '{name}'"), Change::AddVhost(vhost));
        self.limits(&Of::Vhost(name), &limits)
    }

    fn user(&mut self, entry: UserEntry) -> Result<(), String> {
        let UserEntry { name, password_hash, password, hashing_algorithm, tags, limits } = entry;
        let not_taken = |why: &str| Err(format!("user '{name}': {why}"));
        let (algorithm, password_hash) = match (password_hash, password, hashing_algorithm.as_deref()) {
            (Some(hash), _, None | Some(SHA256)) => (HashAlgorithm::RabbitSha256, hash),
            (Some(hash), _, Some(SHA512)) => (HashAlgorithm::RabbitSha512, hash),
            (Some(hash), _, Some(OWN_ALGORITHM)) => (HashAlgorithm::Argon2id, hash),
            (Some(_), _, Some(other)) => return not_taken(&format!("passwords cannot be verified by {other}")),
            (None, Some(password), _) => match hash(&password) {
                Ok(hash) => (HashAlgorithm::Argon2id, hash),
                Err(error) => return not_taken(&error.to_string()),
            },
            (None, None, _) => (HashAlgorithm::Argon2id, String::new()),
        };
        let user = UserDefinition {
            name: name.clone(),
            algorithm: algorithm.into(),
            password_hash,
            tags: tags_of(&tags),
            ..UserDefinition::default()
        };
        self.push(format!("user '{name}'"), Change::PutUser(user));
        self.limits(&Of::User(name), &limits)
    }

    /// As an object, or as a list of pairs. A negative one is none.
    fn limits(&mut self, of: &Of, limits: &Value) -> Result<(), String> {
        let what = match of {
            Of::Vhost(name) => format!("vhost '{name}'"),
            Of::User(name) => format!("user '{name}'"),
        };
        let pairs: Vec<(String, Value)> = match limits {
            Value::Null => Vec::new(),
            Value::Object(limits) => limits.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            Value::Array(limits) => {
                let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.clone()));
                let pairs: Option<_> = limits.iter().map(pair).collect();
                pairs.ok_or_else(|| format!("limits of {what}: no list of pairs: {limits:?}"))?
            }
            other => return Err(format!("limits of {what}: {other}")),
        };
        for (name, value) in pairs {
            let limit = match name.as_str() {
                "max-connections" => Limit::MaxConnections,
                "max-queues" => Limit::MaxQueues,
                "max-channels" => Limit::MaxChannels,
                _ => {
                    self.not_taken.push(format!("limit {name} of {what}: not known here"));
                    continue;
                }
            };
            let value = value.as_i64().ok_or_else(|| format!("limit {name} of {what}: no number: {value}"))?;
            let change = LimitChange { limit: limit.into(), value: u64::try_from(value).ok(), of: Some(of.clone()) };
            self.push(format!("{name} of {what}"), Change::SetLimit(change));
        }
        Ok(())
    }

    fn policy(&mut self, vhost: String, operator: bool, name: String, value: PolicyValue) -> Result<(), String> {
        let kind = if operator { "operator policy" } else { "policy" };
        let what = format!("{kind} '{name}' in vhost '{vhost}'");
        let PolicyValue { pattern, apply_to, priority, definition } = value;
        let definition = match definition {
            Value::Object(settings) => Some(settings),
            Value::Array(pairs) => {
                let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.clone()));
                pairs.iter().map(pair).collect()
            }
            _ => None,
        };
        let definition = definition.ok_or_else(|| format!("{what}: its definition is no object"))?;
        let definition = to_arguments(&definition).map_err(|why| format!("{what}: {why}"))?;
        let policy = PolicyDefinition { vhost, operator, name, pattern, apply_to, priority, definition };
        self.push(what, Change::SetPolicy(policy));
        Ok(())
    }

    fn exchange(&mut self, vhost: &str, entry: ExchangeEntry) -> Result<(), String> {
        let vhost = entry.vhost.unwrap_or_else(|| vhost.to_owned());
        let what = format!("exchange '{}' in vhost '{vhost}'", entry.name);
        let arguments = to_arguments(&entry.arguments).map_err(|why| format!("{what}: {why}"))?;
        let ExchangeEntry { name, r#type, durable, auto_delete, internal, .. } = entry;
        let name = name.into_bytes().into();
        self.push(
            what,
            Change::DeclareExchange(ExchangeDefinition {
                vhost,
                name,
                r#type,
                durable,
                auto_delete,
                internal,
                arguments,
            }),
        );
        Ok(())
    }

    fn queue(&mut self, vhost: &str, entry: QueueEntry) -> Result<(), String> {
        let vhost = entry.vhost.unwrap_or_else(|| vhost.to_owned());
        let what = format!("queue '{}' in vhost '{vhost}'", entry.name);
        if entry.name.starts_with("amq.") {
            return Err(format!("{what}: a name that a broker has given to a client of its own"));
        }
        let arguments = to_arguments(&entry.arguments).map_err(|why| format!("{what}: {why}"))?;
        let QueueEntry { name, durable, auto_delete, .. } = entry;
        let name = name.into_bytes().into();
        self.push(what, Change::DeclareQueue(QueueDefinition { vhost, name, durable, auto_delete, arguments }));
        Ok(())
    }

    fn binding(&mut self, vhost: &str, entry: BindingEntry) -> Result<(), String> {
        let vhost = entry.vhost.unwrap_or_else(|| vhost.to_owned());
        let BindingEntry { source, destination, destination_type, routing_key, arguments, .. } = entry;
        let what = format!(
            "binding of {destination_type} '{destination}' to exchange '{source}' by '{routing_key}' in vhost '{vhost}'"
        );
        let to_queue = match destination_type.as_str() {
            "queue" => true,
            "exchange" => false,
            _ => return Err(format!("{what}: no queue and no exchange")),
        };
        if to_queue && destination.starts_with("amq.") {
            return Err(format!("{what}: a name that a broker has given to a client of its own"));
        }
        let arguments = to_arguments(&arguments).map_err(|why| format!("{what}: {why}"))?;
        self.push(
            what,
            Change::Bind(BindingDefinition {
                vhost,
                source: source.into_bytes().into(),
                destination: destination.into_bytes().into(),
                to_queue,
                routing_key: routing_key.into_bytes().into(),
                arguments,
            }),
        );
        Ok(())
    }

    /// In an order in which each finds what it needs.
    pub fn changes(&self) -> Vec<AdminChange> {
        self.changes.iter().map(|(_, change)| AdminChange { change: Some(change.clone()) }).collect()
    }

    /// `outcomes`: of the changes, in their order.
    pub fn report(self, outcomes: Vec<AdminOutcome>) -> Report {
        let mut report = Report { not_taken: self.not_taken, ..Report::default() };
        for ((what, _), outcome) in self.changes.into_iter().zip(outcomes) {
            match outcome.kind() {
                Kind::Changed => report.changed += 1,
                Kind::Unchanged => report.unchanged += 1,
                Kind::Differs => report.differs.push(format!("{what}: {}", outcome.why)),
                Kind::Refused | Kind::Unspecified => report.refused.push(format!("{what}: {}", outcome.why)),
            }
        }
        report
    }
}

/// A list, or a text with commas, as older versions have it.
fn tags_of(tags: &Value) -> Vec<String> {
    let texts: Vec<&str> = match tags {
        Value::Array(tags) => tags.iter().filter_map(Value::as_str).collect(),
        Value::String(tags) => tags.split(',').collect(),
        _ => Vec::new(),
    };
    texts.into_iter().map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn planned(file: &Value) -> (Vec<String>, Vec<String>) {
        let plan = plan(file.to_string().as_bytes(), "/", true).unwrap();
        (plan.changes.into_iter().map(|(what, _)| what).collect(), plan.not_taken)
    }

    #[test]
    fn what_needs_something_comes_after_it_and_users_end_the_open_guest() {
        let (changes, not_taken) = planned(&json!({
            "bindings": [{"source": "x", "vhost": "v", "destination": "q", "destination_type": "queue"}],
            "queues": [{"name": "q", "vhost": "v"}],
            "policies": [{"name": "p", "vhost": "v", "pattern": "", "definition": {"max-length": 1}}],
            "parameters": [{
                "component": "operator_policy", "name": "o", "vhost": "v",
                "value": {"pattern": "^a", "apply-to": "queues", "priority": 3, "definition": [["max-length", 1]]},
            }],
            "exchanges": [{"name": "x", "vhost": "v", "type": "direct"}],
            "permissions": [{"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}],
            "users": [{"name": "u", "password": "secret", "tags": "administrator, monitoring"}],
            "vhosts": [{"name": "v", "limits": {"max-queues": -1}}],
        }));
        assert_eq!(
            changes,
            [
                "vhost 'v'",
                "max-queues of vhost 'v'",
                "user 'u'",
                "user 'guest' with the password 'guest', which ends with the first users",
                "permission of user 'u' in vhost 'v'",
                "operator policy 'o' in vhost 'v'",
                "policy 'p' in vhost 'v'",
                "exchange 'x' in vhost 'v'",
                "queue 'q' in vhost 'v'",
                "binding of queue 'q' to exchange 'x' by '' in vhost 'v'",
            ]
        );
        assert_eq!(not_taken, [""; 0]);
    }

    #[test]
    fn a_guest_of_the_files_own_is_put_in_the_others_place() {
        let users = json!({"users": [{"name": "guest", "password_hash": "", "tags": []}]});
        assert_eq!(planned(&users).0, ["user 'guest'"]);
        assert_eq!(planned(&json!({"users": []})).0, [""; 0]);
    }

    #[test]
    fn what_is_not_known_is_named_and_the_rest_is_taken() {
        let (changes, not_taken) = planned(&json!({
            "rabbit_version": "3.10.8",
            "policies": [{"name": "ha", "vhost": "/", "pattern": "", "definition": 1}],
            "parameters": [
                {"component": "federation-upstream", "name": "up", "vhost": "/", "value": {}},
                {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": 3, "max-foo": 1}},
            ],
            "global_parameters": [{"name": "cluster_name", "value": "c"}],
            "users": [
                {"name": "old", "password_hash": "x", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": ""},
                {"no name": 1},
            ],
            "queues": [{"name": "amq.gen-x", "vhost": "/"}, {"name": "q", "arguments": {"n": 1}}],
            "bindings": {"a": 1},
            "shovels": [],
        }));
        assert_eq!(changes, ["max-queues of vhost '/'", "queue 'q' in vhost '/'"]);
        assert_eq!(
            not_taken,
            [
                "user 'old': passwords cannot be verified by rabbit_password_hashing_md5",
                "an entry of 'users' that makes no sense (missing field `name`): {\"no name\":1}",
                "parameter 'up' of component 'federation-upstream' in vhost '/': not supported yet",
                "limit max-foo of vhost '/': not known here",
                "global parameter 'cluster_name': not supported yet",
                "policy 'ha' in vhost '/': its definition is no object",
                "queue 'amq.gen-x' in vhost '/': a name that a broker has given to a client of its own",
                "section 'bindings': no list",
                "section 'shovels': not known here",
            ]
        );
        assert!(plan(b"[]", "/", true).is_err());
        assert!(plan(b"{", "/", true).is_err());
    }

    #[test]
    fn a_report_counts_and_names() {
        let file =
            json!({"vhosts": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "global_parameters": [{"name": "p"}]});
        let outcome = |kind: Kind, why: &str| AdminOutcome { kind: kind.into(), why: why.into() };
        let outcomes = vec![
            outcome(Kind::Changed, ""),
            outcome(Kind::Differs, "it is another"),
            outcome(Kind::Refused, "too many"),
        ];
        let report = plan(file.to_string().as_bytes(), "/", false).unwrap().report(outcomes);
        assert!(!report.is_clean());
        assert_eq!(
            report.to_string(),
            "differs: vhost 'b': it is another\nrefused: vhost 'c': too many\nnot taken: global parameter 'p': not \
             supported yet\n1 changed, 0 as they were, 1 differ, 1 refused, 1 not taken\n"
        );
    }
}
