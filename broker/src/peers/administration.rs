//! Administrative changes and definitions as they stand on the wire, to the core's own and back. What a caller says wrong is an
//! error that names it.

use bytes::Bytes;
use tonic::Status;
use understudy_core::{
    AdminCommand, BindingDefinition, Definitions, Limit, LimitOf, Refusal, UserDefinition, VhostDefinition,
};
use understudy_node::AdminOutcomes;
use understudy_proto::{self as wire, admin_change::Change};
use understudy_record::{
    ApplyTo, ExchangeKind, ExchangeSpec, HashAlgorithm, PasswordHash, Permission, PolicySpec, QueueSpec, ShortStr,
    TopicPermission, UserSpec, VhostSpec,
};

use crate::amqp::check_hash;

/// Of each kind, in one message of a stream: far below what a message may have.
const DEFINITIONS_PER_MESSAGE: usize = 500;

/// Changes in one request: some milliseconds of the core thread.
const MAX_CHANGES: usize = 1000;

/// Each change, or what is wrong with it.
pub(super) fn commands(request: wire::AdministerRequest) -> Result<Vec<Result<AdminCommand, String>>, Status> {
    if request.changes.len() > MAX_CHANGES {
        return Err(Status::invalid_argument(format!("more than {MAX_CHANGES} changes in one request")));
    }
    Ok(request.changes.into_iter().map(command).collect())
}

fn command(change: wire::AdminChange) -> Result<AdminCommand, String> {
    Ok(match change.change.ok_or("a change that this version does not know")? {
        Change::AddVhost(vhost) => AdminCommand::AddVhost(VhostSpec {
            name: name(&vhost.name)?,
            description: vhost.description,
            tags: tags(&vhost.tags)?,
        }),
        Change::DeleteVhost(vhost) => AdminCommand::DeleteVhost { name: name(&vhost)? },
        Change::AddUser(user) => AdminCommand::AddUser(user_spec(&user)?),
        Change::PutUser(user) => AdminCommand::PutUser(user_spec(&user)?),
        Change::SetPassword(user) => {
            let UserSpec { name, password, .. } = user_spec(&user)?;
            AdminCommand::SetPassword { user: name, password }
        }
        Change::SetTags(user) => AdminCommand::SetTags { user: name(&user.name)?, tags: tags(&user.tags)? },
        Change::DeleteUser(user) => AdminCommand::DeleteUser { name: name(&user)? },
        Change::SetPermission(allowed) => {
            let wire::PermissionDefinition { user, vhost, configure, write, read } = allowed;
            let permission = Permission { configure, write, read };
            AdminCommand::SetPermission { user: name(&user)?, vhost: name(&vhost)?, permission }
        }
        Change::ClearPermission(allowed) => {
            AdminCommand::ClearPermission { user: name(&allowed.user)?, vhost: name(&allowed.vhost)? }
        }
        Change::SetTopicPermission(allowed) => {
            let wire::TopicPermissionDefinition { user, vhost, exchange, write, read } = allowed;
            let permission = TopicPermission { write, read };
            let (user, vhost, exchange) = (name(&user)?, name(&vhost)?, short(exchange)?);
            AdminCommand::SetTopicPermission { user, vhost, exchange, permission }
        }
        Change::ClearTopicPermission(allowed) => {
            let exchange = Some(short(allowed.exchange)?).filter(|exchange| !exchange.is_empty());
            let (user, vhost) = (name(&allowed.user)?, name(&allowed.vhost)?);
            AdminCommand::ClearTopicPermission { user, vhost, exchange }
        }
        Change::SetLimit(change) => {
            let limit = match change.limit() {
                wire::Limit::MaxConnections => Limit::MaxConnections,
                wire::Limit::MaxQueues => Limit::MaxQueues,
                wire::Limit::MaxChannels => Limit::MaxChannels,
                wire::Limit::Unspecified => return Err("a limit that this version does not know".into()),
            };
            let of = match change.of.ok_or("a limit of nothing")? {
                wire::limit_change::Of::Vhost(vhost) => LimitOf::Vhost(name(&vhost)?),
                wire::limit_change::Of::User(user) => LimitOf::User(name(&user)?),
            };
            AdminCommand::SetLimit { of, limit, value: change.value }
        }
        Change::SetPolicy(policy) => {
            let (vhost, operator) = (name(&policy.vhost)?, policy.operator);
            AdminCommand::SetPolicy { vhost, operator, policy: policy_spec(policy)? }
        }
        Change::ClearPolicy(policy) => AdminCommand::ClearPolicy {
            vhost: name(&policy.vhost)?,
            operator: policy.operator,
            name: name(&policy.name)?,
        },
        Change::DeclareExchange(exchange) => {
            let kind = ExchangeKind::from_name(exchange.r#type.as_bytes());
            AdminCommand::DeclareExchange {
                kind: kind.ok_or_else(|| format!("there is no exchange type '{}'", exchange.r#type))?,
                vhost: name(&exchange.vhost)?,
                name: short(exchange.name)?,
                durable: exchange.durable,
                auto_delete: exchange.auto_delete,
                internal: exchange.internal,
                arguments: exchange.arguments,
            }
        }
        Change::DeclareQueue(queue) => AdminCommand::DeclareQueue {
            vhost: name(&queue.vhost)?,
            name: short(queue.name)?,
            durable: queue.durable,
            auto_delete: queue.auto_delete,
            arguments: queue.arguments,
        },
        Change::Bind(binding) => AdminCommand::Bind(BindingDefinition {
            vhost: name(&binding.vhost)?,
            source: short(binding.source)?,
            destination: short(binding.destination)?,
            to_queue: binding.to_queue,
            routing_key: short(binding.routing_key)?,
            arguments: binding.arguments,
        }),
    })
}

fn user_spec(user: &wire::UserDefinition) -> Result<UserSpec, String> {
    let algorithm = match user.algorithm() {
        wire::HashAlgorithm::Argon2id => HashAlgorithm::Argon2id,
        wire::HashAlgorithm::RabbitSha256 => HashAlgorithm::RabbitSha256,
        wire::HashAlgorithm::RabbitSha512 => HashAlgorithm::RabbitSha512,
        wire::HashAlgorithm::Unspecified => return Err("a hash algorithm that this version does not know".into()),
    };
    let password = PasswordHash { algorithm, text: user.password_hash.clone() };
    check_hash(&password).map_err(|why| format!("user '{}' has {why}", user.name))?;
    Ok(UserSpec { name: name(&user.name)?, password, tags: tags(&user.tags)? })
}

fn policy_spec(policy: wire::PolicyDefinition) -> Result<PolicySpec, String> {
    let apply_to = match policy.apply_to.as_str() {
        "" => ApplyTo::All,
        apply_to => ApplyTo::from_name(apply_to).ok_or_else(|| {
            format!(
                "apply-to '{apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', 'quorum_queues', \
                 'streams', 'exchanges', or 'all'"
            )
        })?,
    };
    let wire::PolicyDefinition { name: called, pattern, priority, definition, .. } = policy;
    Ok(PolicySpec { name: name(&called)?, pattern, apply_to, priority, definition })
}

fn name(text: &str) -> Result<ShortStr, String> {
    ShortStr::try_from(text).map_err(|_| format!("a name has at most {} octets: '{text}'", ShortStr::MAX_BYTES))
}

fn short(octets: Bytes) -> Result<ShortStr, String> {
    ShortStr::new(octets).ok_or_else(|| format!("a name or routing key has at most {} octets", ShortStr::MAX_BYTES))
}

fn tags(texts: &[String]) -> Result<Vec<ShortStr>, String> {
    texts.iter().map(|text| name(text)).collect()
}

/// Of each change: of those that made sense the core's, of the others what is wrong.
pub(super) fn outcomes(wrong: Vec<Result<(), String>>, outcomes: AdminOutcomes) -> wire::AdministerReply {
    use wire::admin_outcome::Kind;
    let mut outcomes = outcomes.into_iter();
    let all = wrong.into_iter().filter_map(|change| match change {
        Ok(()) => outcomes.next(),
        Err(why) => Some(Err(Refusal::Refused(why))),
    });
    let outcomes = all.map(|outcome| {
        let (kind, why) = match outcome {
            Ok(true) => (Kind::Changed, String::new()),
            Ok(false) => (Kind::Unchanged, String::new()),
            Err(Refusal::Differs(why)) => (Kind::Differs, why),
            Err(Refusal::Refused(why)) => (Kind::Refused, why),
        };
        wire::AdminOutcome { kind: kind.into(), why }
    });
    wire::AdministerReply { outcomes: outcomes.collect() }
}

/// In messages of a bounded size.
pub(super) fn definitions(definitions: Definitions) -> Vec<wire::Definitions> {
    let Definitions {
        vhosts,
        users,
        has_open_guest,
        permissions,
        topic_permissions,
        policies,
        exchanges,
        queues,
        bindings,
    } = definitions;
    let mut messages = vec![wire::Definitions { open_guest: has_open_guest, ..wire::Definitions::default() }];
    let permissions = permissions.into_iter().map(|(user, vhost, Permission { configure, write, read })| {
        wire::PermissionDefinition { user: text(&user), vhost: text(&vhost), configure, write, read }
    });
    let topics = topic_permissions.into_iter().map(|(user, vhost, exchange, TopicPermission { write, read })| {
        let exchange = exchange.bytes().clone();
        wire::TopicPermissionDefinition { user: text(&user), vhost: text(&vhost), exchange, write, read }
    });
    fill(&mut messages, vhosts.into_iter().map(vhost_to_wire), |message| &mut message.vhosts);
    fill(&mut messages, users.into_iter().map(user_to_wire), |message| &mut message.users);
    fill(&mut messages, permissions, |message| &mut message.permissions);
    fill(&mut messages, topics, |message| &mut message.topic_permissions);
    fill(&mut messages, policies.into_iter().map(policy_to_wire), |message| &mut message.policies);
    fill(&mut messages, exchanges.into_iter().map(exchange_to_wire), |message| &mut message.exchanges);
    fill(&mut messages, queues.into_iter().map(queue_to_wire), |message| &mut message.queues);
    fill(&mut messages, bindings.into_iter().map(binding_to_wire), |message| &mut message.bindings);
    messages
}

/// As many messages more as it takes, one kind in each.
fn fill<T>(
    messages: &mut Vec<wire::Definitions>,
    items: impl Iterator<Item = T>,
    of: impl Fn(&mut wire::Definitions) -> &mut Vec<T>,
) {
    for (at, item) in items.enumerate() {
        if at % DEFINITIONS_PER_MESSAGE == 0 && at > 0 {
            messages.push(wire::Definitions::default());
        }
        if let Some(last) = messages.last_mut() {
            of(last).push(item);
        }
    }
    messages.push(wire::Definitions::default());
}

fn vhost_to_wire(VhostDefinition { spec, limits }: VhostDefinition) -> wire::VhostDefinition {
    wire::VhostDefinition {
        name: text(&spec.name),
        description: spec.description,
        tags: spec.tags.iter().map(text).collect(),
        max_connections: limits.max_connections,
        max_queues: limits.max_queues,
    }
}

fn user_to_wire(UserDefinition { spec, limits }: UserDefinition) -> wire::UserDefinition {
    let algorithm = match spec.password.algorithm {
        HashAlgorithm::Argon2id => wire::HashAlgorithm::Argon2id,
        HashAlgorithm::RabbitSha256 => wire::HashAlgorithm::RabbitSha256,
        HashAlgorithm::RabbitSha512 => wire::HashAlgorithm::RabbitSha512,
    };
    wire::UserDefinition {
        name: text(&spec.name),
        algorithm: algorithm.into(),
        password_hash: spec.password.text,
        tags: spec.tags.iter().map(text).collect(),
        max_connections: limits.max_connections,
        max_channels: limits.max_channels,
    }
}

fn policy_to_wire((vhost, operator, spec): (ShortStr, bool, PolicySpec)) -> wire::PolicyDefinition {
    wire::PolicyDefinition {
        vhost: text(&vhost),
        operator,
        name: text(&spec.name),
        pattern: spec.pattern,
        apply_to: spec.apply_to.name().to_owned(),
        priority: spec.priority,
        definition: spec.definition,
    }
}

fn exchange_to_wire((vhost, spec): (ShortStr, ExchangeSpec)) -> wire::ExchangeDefinition {
    wire::ExchangeDefinition {
        vhost: text(&vhost),
        name: spec.name.bytes().clone(),
        r#type: spec.kind.name().to_owned(),
        durable: spec.durable,
        auto_delete: spec.auto_delete,
        internal: spec.internal,
        arguments: spec.arguments,
    }
}

fn queue_to_wire((vhost, spec): (ShortStr, QueueSpec)) -> wire::QueueDefinition {
    wire::QueueDefinition {
        vhost: text(&vhost),
        name: spec.name.bytes().clone(),
        durable: spec.durable,
        auto_delete: spec.auto_delete,
        arguments: spec.arguments,
    }
}

fn binding_to_wire(binding: BindingDefinition) -> wire::BindingDefinition {
    wire::BindingDefinition {
        vhost: text(&binding.vhost),
        source: binding.source.bytes().clone(),
        destination: binding.destination.bytes().clone(),
        to_queue: binding.to_queue,
        routing_key: binding.routing_key.bytes().clone(),
        arguments: binding.arguments,
    }
}

fn text(name: &ShortStr) -> String {
    name.to_text().into_owned()
}
