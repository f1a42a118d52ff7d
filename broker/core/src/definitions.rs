//! Definitions: what administrators and clients have made, written down by names, so that another broker can be made the same;
//! and such a list brought in. What ends with its connection, and what every broker has by itself, is in none.

use bytes::Bytes;
use understudy_protocol::FieldValue;
use understudy_record::{
    BasePiece, Binding, Destination, ExchangeSpec, Permission, PolicySpec, QueueSpec, ShortStr, TopicPermission,
    UserLimits, UserSpec, VhostId, VhostLimits, VhostSpec,
};

use crate::administration::{AdminCommand, Refusal, refusal, refused};
use crate::arguments;
use crate::binding::BindWish;
use crate::core::Core;
use crate::declare::{ExchangeFlags, QueueFlags};
use crate::effect::Outputs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingDefinition {
    pub vhost: ShortStr,
    pub source: ShortStr,
    /// A queue's name, or an exchange's.
    pub destination: ShortStr,
    pub to_queue: bool,
    pub routing_key: ShortStr,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

/// What is there, without what a broker has by itself and what ends with its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    pub vhosts: Vec<VhostDefinition>,
    pub users: Vec<UserDefinition>,
    /// `guest` is there without a record.
    pub has_open_guest: bool,
    /// User, virtual host, and what the one may do in the other.
    pub permissions: Vec<(ShortStr, ShortStr, Permission)>,
    /// The same with the exchange.
    pub topic_permissions: Vec<(ShortStr, ShortStr, ShortStr, TopicPermission)>,
    /// Each with its virtual host and whether it is an operator's, the first to count first.
    pub policies: Vec<(ShortStr, bool, PolicySpec)>,
    /// Each with its virtual host, here and below.
    pub exchanges: Vec<(ShortStr, ExchangeSpec)>,
    pub queues: Vec<(ShortStr, QueueSpec)>,
    pub bindings: Vec<BindingDefinition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostDefinition {
    pub spec: VhostSpec,
    pub limits: VhostLimits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDefinition {
    pub spec: UserSpec,
    pub limits: UserLimits,
}

impl Core {
    /// An exchange or a queue, as a definition has it.
    pub(crate) fn declare_as_defined(&mut self, command: AdminCommand, out: &mut Outputs) -> Result<(), Refusal> {
        match command {
            AdminCommand::DeclareExchange { vhost, name, kind, durable, auto_delete, internal, arguments } => {
                let vhost = self.vhost_id(&vhost)?;
                self.check_writable(vhost)?;
                let flags = ExchangeFlags { durable, auto_delete, internal };
                let there = self.state.vhost(vhost).exchanges.contains_key(&name);
                let declared = self.ensure_exchange(vhost, None, name, kind, flags, arguments, out);
                declared.map_err(|failure| refusal(there, &failure))?;
            }
            AdminCommand::DeclareQueue { vhost, name, durable, auto_delete, arguments } => {
                let vhost = self.vhost_id(&vhost)?;
                self.check_writable(vhost)?;
                if name.is_empty() {
                    return refused("a queue without a name");
                }
                let flags = QueueFlags { durable, exclusive: false, auto_delete };
                let there = self.state.vhost(vhost).names.contains_key(&name);
                let declared = self.ensure_queue(vhost, None, name, flags, arguments, out);
                declared.map_err(|failure| refusal(there, &failure))?;
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn bind_as_defined(&mut self, definition: BindingDefinition, out: &mut Outputs) -> Result<(), Refusal> {
        let BindingDefinition { vhost, source, destination, to_queue, routing_key, arguments } = definition;
        let vhost = self.vhost_id(&vhost)?;
        self.check_writable(vhost)?;
        let wish = BindWish { source, routing_key, arguments };
        let binding = match to_queue {
            true => self.queue_binding(vhost, None, &destination, wish),
            false => self.exchange_binding(vhost, destination, wish),
        };
        let binding = binding.map_err(|failure| refusal(false, &failure))?;
        // A number's type does not come through a text.
        let is_there =
            self.state.bindings_to(vhost, &binding.destination).any(|other| is_same_binding(other, &binding));
        if !is_there {
            self.ensure_bound(vhost, binding, out);
        }
        Ok(())
    }

    /// `topology`: with exchanges, queues and bindings. Visits all there is.
    pub fn definitions(&self, topology: bool) -> Definitions {
        let state = &self.state;
        let name = |id: VhostId| state.vhosts.get(id).map(|vhost| vhost.name().clone());
        let vhosts = state.vhosts.iter();
        let vhosts = vhosts.map(|vhost| VhostDefinition { spec: vhost.spec.clone(), limits: vhost.limits }).collect();
        let users = state.accounts.users().map(|(name, user)| {
            let spec = UserSpec { name: name.clone(), password: user.password.clone(), tags: user.tags.clone() };
            UserDefinition { spec, limits: user.limits }
        });
        let permissions = state.accounts.permissions();
        let permissions =
            permissions.filter_map(|(user, vhost, allowed)| Some((user.clone(), name(vhost)?, allowed.clone())));
        let topics = state.accounts.topic_permissions();
        let topics = topics.filter_map(|(user, vhost, exchange, allowed)| {
            Some((user.clone(), name(vhost)?, exchange.clone(), allowed.clone()))
        });
        let policies = state.vhosts.iter().flat_map(|vhost| {
            vhost.policies.iter().map(|(operator, policy)| (vhost.name().clone(), operator, policy.clone()))
        });
        let mut definitions = Definitions {
            vhosts,
            users: users.collect(),
            has_open_guest: state.accounts.has_open_guest(),
            permissions: permissions.collect(),
            topic_permissions: topics.collect(),
            policies: policies.collect(),
            ..Definitions::default()
        };
        if topology {
            self.define_topology(&mut definitions);
        }
        definitions
    }

    fn define_topology(&self, definitions: &mut Definitions) {
        for piece in self.state.topology() {
            let (vhost, piece) = piece.in_vhost();
            let Some(vhost) = self.state.vhosts.get(vhost).map(|vhost| vhost.name().clone()) else { continue };
            match piece {
                BasePiece::Exchange(spec) => definitions.exchanges.push((vhost, spec)),
                BasePiece::Queue { spec, .. } if !spec.exclusive => {
                    definitions.queues.push((vhost, spec));
                }
                BasePiece::Binding(binding) => {
                    definitions.bindings.extend(self.define_binding(vhost, binding));
                }
                _ => {}
            }
        }
    }

    fn define_binding(&self, vhost: ShortStr, binding: Binding) -> Option<BindingDefinition> {
        let Binding { source, destination, routing_key, arguments } = binding;
        let (destination, to_queue) = match destination {
            Destination::Queue(queue) => {
                let queue = self.state.queues.get(&queue).filter(|queue| !queue.spec.exclusive)?;
                (queue.spec.name.clone(), true)
            }
            Destination::Exchange(name) => (name, false),
        };
        Some(BindingDefinition { vhost, source, destination, to_queue, routing_key, arguments })
    }
}

/// To the same destination.
fn is_same_binding(one: &Binding, other: &Binding) -> bool {
    if (&one.source, &one.routing_key) != (&other.source, &other.routing_key) {
        return false;
    }
    let tables = (arguments::decode(&one.arguments), arguments::decode(&other.arguments));
    let (Some(one), Some(other)) = tables else { return false };
    let same = |(name, value): (&ShortStr, &FieldValue)| {
        std::str::from_utf8(name.as_bytes())
            .ok()
            .and_then(|name| other.get(name))
            .is_some_and(|other| arguments::same_value(value, other))
    };
    one.len() == other.len() && one.iter().all(same)
}
