//! What a connection's user may do, as RabbitMQ has it: of the names of queues and exchanges in a virtual host, which it may
//! *configure*, *write* to and *read* from; and of routing keys at exchanges of type topic, which it may write and read.
//!
//! | operation | needs |
//! | --- | --- |
//! | declare or delete a queue or an exchange, unless passive | configure |
//! | with `x-dead-letter-exchange`, of a new queue | read of the queue, write of that exchange |
//! | with `alternate-exchange`, of a new exchange | read of the exchange, write of the alternate one |
//! | bind, unbind | write of the destination, read of the source, and of the routing key there |
//! | publish | write of the exchange, and of the routing keys there |
//! | consume, get, purge | read of the queue |
//!
//! The default exchange is called `amq.default` here. A pattern matches anywhere in a name unless it is anchored; an empty one
//! matches the empty name alone. Topics are free where no topic permission names the exchange.
//!
//! A name that was allowed is remembered by the connection, so that the next publish to it costs one look into a table. Who
//! may do everything has no rules, and nothing is looked up. Rules are made anew when a permission changes, also for
//! connections that are open.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use regex::bytes::{Regex, RegexBuilder};
use understudy_protocol::{FieldValue, Properties};
use understudy_record::{ExchangeKind, Permission, ShortStr, TopicPermission, VhostId};

use crate::client::Origin;
use crate::command::{Account, ChannelId, Command, ConnectionId, ConnectionInfo};
use crate::copies;
use crate::core::Core;
use crate::direct_reply::is_pseudo_queue;
use crate::error::{self, Failure};
use crate::session::Connection;
use crate::state::State;

/// Names that one connection remembers as allowed, of each need: more, and it begins anew. A connection that publishes to
/// more exchanges than that in turn pays for a match now and then.
const MAX_REMEMBERED: usize = 1024;

/// What one pattern may take in memory, compiled: thousands of alternatives.
const MAX_COMPILED_BYTES: usize = 1 << 20;

const DEFAULT_EXCHANGE: &str = "amq.default";
const RESERVED_PREFIX: &[u8] = b"amq.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Configure,
    Write,
    Read,
}

/// What a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exchange,
    Queue,
}

/// Of one connection.
#[derive(Debug)]
pub(crate) enum Access {
    All,
    By(Box<Restricted>),
}

#[derive(Debug)]
pub(crate) struct Restricted {
    rules: Arc<Rules>,
    /// By need: names that the rules allow.
    remembered: [HashSet<ShortStr>; 3],
}

/// Of one user in one virtual host.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// By need.
    names: [Pattern; 3],
    /// By exchange: for writing and for reading.
    topics: HashMap<ShortStr, [Pattern; 2]>,
}

#[derive(Clone, Debug, Default)]
enum Pattern {
    All,
    #[default]
    Nothing,
    Some(Regex),
}

impl Pattern {
    fn new(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Some(compile("^$")?)),
            ".*" | "^.*" => Ok(Self::All),
            text => Ok(Self::Some(compile(text)?)),
        }
    }

    /// One that was accepted once, by another build perhaps: what this one does not understand allows nothing.
    fn known(text: &str) -> Self {
        Self::new(text).unwrap_or_default()
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Some(regex) => regex.is_match(name),
        }
    }
}

/// Octet by octet, as names are; a pattern that only makes sense on characters is one on characters.
pub(crate) fn compile(text: &str) -> Result<Regex, String> {
    let build = |unicode| RegexBuilder::new(text).unicode(unicode).size_limit(MAX_COMPILED_BYTES).build();
    build(false).or_else(|_| build(true)).map_err(|error| error.to_string())
}

/// # Errors
/// Why it is no pattern.
pub(crate) fn check_pattern(text: &str) -> Result<(), String> {
    Pattern::new(text).map(drop)
}

/// The pattern for this user in this virtual host: `{username}` and `{vhost}` stand for their names, taken literally.
fn expand(pattern: &str, user: &ShortStr, vhost: &ShortStr) -> String {
    if !pattern.contains('{') {
        return pattern.to_owned();
    }
    let literal = |name: &ShortStr| regex::escape(&name.to_text());
    pattern.replace("{username}", &literal(user)).replace("{vhost}", &literal(vhost))
}

/// As it is checked when it is set.
pub(crate) fn check_topic_pattern(text: &str) -> Result<(), String> {
    let name = ShortStr::from_static("name");
    check_pattern(&expand(text, &name, &name))
}

impl Rules {
    fn new(state: &State, user: &ShortStr, vhost: VhostId) -> Self {
        let Some(permission) = state.accounts.permission(user, vhost) else { return Self::default() };
        let Permission { configure, write, read } = permission;
        let names = [configure, write, read].map(|text| Pattern::known(text));
        let name = state.vhost(vhost).name();
        let topics = state.accounts.topic_permissions_of(user, vhost).map(|(exchange, permission)| {
            let TopicPermission { write, read } = permission;
            (exchange.clone(), [write, read].map(|text| Pattern::known(&expand(text, user, name))))
        });
        Self { names, topics: topics.collect() }
    }

    fn allow_all(&self) -> bool {
        self.topics.is_empty() && self.names.iter().all(|pattern| matches!(pattern, Pattern::All))
    }
}

impl Restricted {
    fn allows(&mut self, need: Need, name: &ShortStr) -> bool {
        let remembered = &mut self.remembered[need as usize];
        if remembered.contains(name) {
            return true;
        }
        let allowed = self.rules.names[need as usize].matches(name.as_bytes());
        if allowed {
            if remembered.len() >= MAX_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(name.detached());
        }
        allowed
    }
}

/// One command's checks.
struct Check<'a> {
    restricted: &'a mut Restricted,
    state: &'a State,
    vhost: VhostId,
    user: &'a str,
}

impl Check<'_> {
    fn of(&mut self, need: Need, kind: Kind, name: &ShortStr) -> Result<(), Failure> {
        let default = ShortStr::from_static(DEFAULT_EXCHANGE);
        let name = if kind == Kind::Exchange && name.is_empty() { &default } else { name };
        match self.restricted.allows(need, name) {
            true => Ok(()),
            false => Err(error::access_refused(&self.object(kind, name), self.user)),
        }
    }

    fn object(&self, kind: Kind, name: &ShortStr) -> String {
        let vhost = self.state.vhost(self.vhost).name();
        match kind {
            Kind::Exchange => error::exchange(vhost, name),
            Kind::Queue => error::queue(vhost, name),
        }
    }

    /// `need`: to write or to read.
    fn of_topics(
        &self,
        need: Need,
        exchange: &ShortStr,
        keys: impl FnOnce() -> Result<Vec<ShortStr>, Failure>,
    ) -> Result<(), Failure> {
        let Some(patterns) = self.restricted.rules.topics.get(exchange) else { return Ok(()) };
        let known = self.state.vhost(self.vhost).exchanges.get(exchange);
        if known.is_none_or(|known| known.spec.kind != ExchangeKind::Topic) {
            return Ok(());
        }
        let pattern = &patterns[usize::from(need == Need::Read)];
        let refused = keys()?.into_iter().find(|key| !pattern.matches(key.as_bytes()));
        refused.map_or(Ok(()), |key| {
            let object = format!("topic '{key}' in {}", self.object(Kind::Exchange, exchange));
            Err(error::access_refused(&object, self.user))
        })
    }

    fn of_binding(
        &mut self,
        kind: Kind,
        destination: &ShortStr,
        source: &ShortStr,
        key: &ShortStr,
    ) -> Result<(), Failure> {
        self.of(Need::Write, kind, destination)?;
        if source.is_empty() || destination.is_empty() {
            return Ok(()); // the default exchange: refused for what it is
        }
        self.of(Need::Read, Kind::Exchange, source)?;
        self.of_topics(Need::Read, source, || Ok(vec![key.clone()]))
    }

    /// `last`: what an empty queue name means. Where a command makes no sense nothing is said: carrying it out says what is
    /// wrong.
    fn command(&mut self, command: &Command, last: &ShortStr) -> Result<(), Failure> {
        let resolved = |queue: &ShortStr| Some(if queue.is_empty() { last } else { queue }.clone());
        let resolved = |queue: &ShortStr| resolved(queue).filter(|queue| !queue.is_empty());
        let (need, kind, name) = match command {
            Command::ExchangeDeclare { passive: false, name, kind, .. } => {
                if name.is_empty() || ExchangeKind::from_name(kind.as_bytes()).is_none() {
                    return Ok(());
                }
                (Need::Configure, Kind::Exchange, Some(name.clone()))
            }
            Command::ExchangeDelete { name, .. } => {
                let deletable = !name.is_empty() && !name.as_bytes().starts_with(RESERVED_PREFIX);
                (Need::Configure, Kind::Exchange, deletable.then(|| name.clone()))
            }
            Command::QueueDeclare { passive: false, name, .. } => {
                // One without a name is checked once it has one.
                let declarable = !name.is_empty() && !name.as_bytes().starts_with(RESERVED_PREFIX);
                (Need::Configure, Kind::Queue, declarable.then(|| name.clone()))
            }
            Command::QueueDelete { queue, .. } => (Need::Configure, Kind::Queue, resolved(queue)),
            Command::QueuePurge { queue, .. } | Command::BasicGet { queue, .. } => {
                (Need::Read, Kind::Queue, resolved(queue))
            }
            Command::BasicConsume { queue, .. } => {
                (Need::Read, Kind::Queue, resolved(queue).filter(|queue| !is_pseudo_queue(queue)))
            }
            Command::BasicPublish(publish) => {
                self.of(Need::Write, Kind::Exchange, &publish.exchange)?;
                return self.of_topics(Need::Write, &publish.exchange, || {
                    let (mut keys, _) = copies::of(&Properties::from_raw(publish.properties.clone()))?;
                    keys.insert(0, publish.routing_key.clone());
                    Ok(keys)
                });
            }
            Command::QueueBind { queue, exchange, routing_key, .. }
            | Command::QueueUnbind { queue, exchange, routing_key, .. } => {
                let Some(name) = resolved(queue) else { return Ok(()) };
                let key = if queue.is_empty() && routing_key.is_empty() { &name } else { routing_key };
                return self.of_binding(Kind::Queue, &name, exchange, key);
            }
            Command::ExchangeBind { destination, source, routing_key, .. }
            | Command::ExchangeUnbind { destination, source, routing_key, .. } => {
                return self.of_binding(Kind::Exchange, destination, source, routing_key);
            }
            _ => return Ok(()),
        };
        name.map_or(Ok(()), |name| self.of(need, kind, &name))
    }
}

impl Connection {
    /// Whether its user may do that.
    pub(crate) fn check_access(&mut self, state: &State, channel: ChannelId, command: &Command) -> Result<(), Failure> {
        let Access::By(restricted) = &mut self.access else { return Ok(()) };
        let Some(channel) = self.channels.get(&channel) else { return Ok(()) };
        let mut check = Check { restricted, state, vhost: self.vhost, user: &self.info.user };
        check.command(command, &channel.last_queue)
    }

    fn check(&mut self, state: &State, need: Need, kind: Kind, name: &ShortStr) -> Result<(), Failure> {
        let Access::By(restricted) = &mut self.access else { return Ok(()) };
        Check { restricted, state, vhost: self.vhost, user: &self.info.user }.of(need, kind, name)
    }
}

impl Core {
    /// The queue's name was made here: whether the user may declare such a one.
    pub(crate) fn check_given_name(&mut self, origin: Origin, name: &ShortStr) -> Result<(), Failure> {
        let connection = self.connections.get_mut(&origin.connection);
        connection.map_or(Ok(()), |connection| connection.check(&self.state, Need::Configure, Kind::Queue, name))
    }

    /// A new queue or exchange `of` may have an argument that names an exchange to which it passes messages on.
    pub(crate) fn check_argument_access(
        &mut self,
        by: Option<Origin>,
        (kind, of): (Kind, &ShortStr),
        exchange: Option<&FieldValue>,
    ) -> Result<(), Failure> {
        let connection = by.and_then(|origin| self.connections.get_mut(&origin.connection));
        let exchange = exchange.and_then(FieldValue::as_bytes).cloned().and_then(ShortStr::new);
        let (Some(connection), Some(exchange)) = (connection, exchange) else { return Ok(()) };
        connection.check(&self.state, Need::Read, kind, of)?;
        connection.check(&self.state, Need::Write, Kind::Exchange, &exchange)
    }

    /// Where a new connection is, and what it may do there.
    pub(crate) fn admit(&mut self, info: &ConnectionInfo) -> Result<(VhostId, Access), Failure> {
        let vhost = self.state.vhosts.named(&info.vhost).filter(|vhost| self.is_settled(vhost.id));
        let vhost = vhost.ok_or_else(|| error::no_vhost(&info.vhost))?;
        let (id, name, user) = (vhost.id, vhost.name(), &info.user);
        if let Some(limit) = vhost.limits.max_connections {
            let open = self.connections.values().filter(|connection| connection.vhost == id && !connection.failed);
            if open.count() as u64 >= limit {
                return Err(error::vhost_refused(name, user, &format!(": connection limit ({limit}) is reached")));
            }
        }
        let known = ShortStr::try_from(user.as_str()).ok();
        let limits = known.and_then(|name| self.state.accounts.user(&name)).map(|user| user.limits);
        let limit = limits.filter(|_| info.account != Account::Elsewhere).and_then(|limits| limits.max_connections);
        if let Some(limit) = limit {
            let open = self.connections.values().filter(|connection| connection.info.is_same_user(info));
            if open.filter(|connection| !connection.failed).count() as u64 >= limit {
                return Err(error::too_many_connections(user, limit));
            }
        }
        if !self.may_enter(info, id) {
            return Err(error::vhost_refused(self.state.vhost(id).name(), user, ""));
        }
        Ok((id, self.access_of(info, id)))
    }

    fn may_enter(&self, info: &ConnectionInfo, vhost: VhostId) -> bool {
        let permitted = || info.user_name().is_some_and(|user| self.state.accounts.permission(&user, vhost).is_some());
        match info.account {
            Account::Elsewhere => true,
            Account::OpenGuest => self.state.accounts.has_open_guest() || permitted(),
            Account::Recorded => permitted(),
        }
    }

    /// As of now.
    pub(crate) fn access_of(&mut self, info: &ConnectionInfo, vhost: VhostId) -> Access {
        let open_guest = info.account == Account::OpenGuest && self.state.accounts.has_open_guest();
        if open_guest || info.account == Account::Elsewhere {
            return Access::All;
        }
        let Some(user) = info.user_name() else { return Access::By(Box::new(Restricted::new(Arc::default()))) };
        let rules = self
            .rules
            .entry((user, vhost))
            .or_insert_with_key(|(user, vhost)| Arc::new(Rules::new(&self.state, user, *vhost)));
        match rules.allow_all() {
            true => Access::All,
            false => Access::By(Box::new(Restricted::new(rules.clone()))),
        }
    }

    /// What connections may do has changed, where and for whom `is_of` says.
    pub(crate) fn renew_access(&mut self, user: Option<&ShortStr>, vhost: Option<VhostId>) {
        let is_of = |name: &[u8], at: VhostId| {
            user.is_none_or(|user| user.as_bytes() == name) && vhost.is_none_or(|vhost| vhost == at)
        };
        self.rules.retain(|(user, vhost), _| !is_of(user.as_bytes(), *vhost));
        let changed = self.connections.iter().filter(|(_, it)| !it.failed && is_of(it.info.user.as_bytes(), it.vhost));
        let changed: Vec<_> = changed.map(|(id, it)| (*id, it.info.clone(), it.vhost)).collect();
        for (id, info, vhost) in changed {
            let access = self.access_of(&info, vhost);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.access = access;
            }
        }
    }

    /// A user whom only the shell knows has none that counts.
    pub(crate) fn has_tag(&self, info: &ConnectionInfo, tag: &str) -> bool {
        let name = info.user_name().filter(|_| info.account != Account::Elsewhere);
        let user = name.and_then(|name| self.state.accounts.user(&name));
        user.is_some_and(|user| user.tags.iter().any(|other| other.as_bytes() == tag.as_bytes()))
    }

    /// The user of a connection may open another channel. Costs nothing where there is no limit.
    pub(crate) fn check_channels(&self, id: ConnectionId) -> Result<(), Failure> {
        if !self.state.accounts.has_users() {
            return Ok(());
        }
        let connection = self.connections.get(&id).filter(|connection| connection.info.account != Account::Elsewhere);
        let Some(connection) = connection else { return Ok(()) };
        let user = connection.info.user_name();
        let user = user.and_then(|name| self.state.accounts.user(&name));
        let Some(limit) = user.and_then(|user| user.limits.max_channels) else { return Ok(()) };
        let of_user = self.connections.values().filter(|other| other.info.is_same_user(&connection.info));
        let open: usize = of_user.map(|other| other.channels.len()).sum();
        match open as u64 >= limit {
            true => Err(error::too_many_channels(&connection.info.user, limit)),
            false => Ok(()),
        }
    }
}

impl Restricted {
    fn new(rules: Arc<Rules>) -> Self {
        Self { rules, remembered: Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(name.as_bytes())
    }

    #[test]
    fn a_pattern_matches_anywhere_unless_it_is_anchored_and_an_empty_one_only_nothing() {
        for (pattern, name, expected) in [
            ("orders", "my-orders-2", true),
            ("^orders", "my-orders-2", false),
            ("^orders$", "orders", true),
            ("", "orders", false),
            ("", "", true),
            ("^$", "orders", false),
            (".*", "", true),
            ("^(a|amq\\.default)$", "amq.default", true),
            ("^[é]$", "é", true),
            ("é", "café", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} on {name:?}");
        }
        assert!(Pattern::new("^a").unwrap().matches(b"a\xff\xfe"), "names need not be text");
    }

    #[test]
    fn what_is_no_pattern_is_refused_and_allows_nothing() {
        for text in ["(", "^(?!amq)", "(a)\\1", "(a{500}){500}"] {
            assert!(check_pattern(text).is_err(), "{text}");
            assert!(!Pattern::known(text).matches(b"a"), "{text}");
        }
    }

    #[test]
    fn names_in_a_topic_pattern_are_taken_literally() {
        let expanded = expand("^{username}\\.{vhost}$", &ShortStr::from_static("a.b"), &ShortStr::from_static("/"));
        assert!(matches(&expanded, "a.b./"));
        assert!(!matches(&expanded, "aXb./"));
        assert_eq!(expand("^a{2}", &ShortStr::EMPTY, &ShortStr::EMPTY), "^a{2}");
        assert!(check_topic_pattern("^{username}").is_ok());
    }
}
