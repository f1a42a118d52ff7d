//! Exchanges and how each kind finds the bindings a message takes. It does not follow bindings from exchange to exchange;
//! that is the `vhost` module.

use std::cell::OnceCell;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use understudy_protocol::{FieldTable, FieldValue, Properties};
use understudy_record::{Binding, ExchangeKind, ExchangeSpec, Index, Replicate, ShortStr, VhostId};

use crate::arguments::{self, ALTERNATE_EXCHANGE};
use crate::deduplication::Passing;
use crate::headers::HeaderMatch;
use crate::keys::{KeyRules, Keys};
use crate::policies::{self, Settings};
use crate::topic::TopicTrie;

/// Exchanges that exist without a record. The default exchange, `""`, is none of them: it has no bindings, only the names
/// of all queues.
pub(crate) const BUILT_IN: [(&str, ExchangeKind); 5] = [
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.headers", ExchangeKind::Headers),
    ("amq.match", ExchangeKind::Headers),
    ("amq.topic", ExchangeKind::Topic),
];

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) spec: ExchangeSpec,
    /// Of the record that declared it, or a later one: whoever saw that commit saw this exchange.
    pub(crate) declared: Index,
    /// Those of which this is the source.
    bindings: HashSet<Arc<Binding>>,
    routes: Routes,
    /// Where a message goes that none of the bindings takes.
    alternate: Option<ShortStr>,
    /// What it has seen, if it drops duplicates.
    pub(crate) keys: Option<Box<Keys>>,
}

#[derive(Debug)]
enum Routes {
    Direct(HashMap<ShortStr, Vec<Arc<Binding>>>),
    /// All bindings.
    Fanout,
    Topic(TopicTrie),
    Headers(Vec<(HeaderMatch, Arc<Binding>)>),
}

/// What routing looks at. The headers are decoded when the first exchange asks for them.
pub(crate) struct Routed<'a> {
    pub(crate) routing_key: &'a ShortStr,
    /// The message is routed by each of these, too.
    pub(crate) more_keys: &'a [ShortStr],
    pub(crate) properties: &'a Bytes,
    pub(crate) headers: OnceCell<FieldTable>,
    passing: &'a Passing,
}

impl<'a> Routed<'a> {
    /// `passing`: with which others it is routed.
    pub(crate) fn new(
        routing_key: &'a ShortStr,
        more_keys: &'a [ShortStr],
        properties: &'a Bytes,
        passing: &'a Passing,
    ) -> Self {
        Self { routing_key, more_keys, properties, headers: OnceCell::new(), passing }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a ShortStr> {
        std::iter::once(self.routing_key).chain(self.more_keys)
    }

    fn headers(&self) -> &FieldTable {
        self.headers.get_or_init(|| Properties::from_raw(self.properties.clone()).headers().unwrap_or_default())
    }
}

impl Exchange {
    pub(crate) fn new(spec: ExchangeSpec, declared: Index) -> Self {
        let routes = match spec.kind {
            ExchangeKind::Direct => Routes::Direct(HashMap::new()),
            ExchangeKind::Fanout | ExchangeKind::MessageDeduplication => Routes::Fanout,
            ExchangeKind::Topic => Routes::Topic(TopicTrie::default()),
            ExchangeKind::Headers => Routes::Headers(Vec::new()),
        };
        let alternate = own_alternate(&spec);
        let keys = spec.deduplicates.then(|| Box::new(Keys::new(KeyRules::of(&spec.arguments))));
        Self { spec, declared, bindings: HashSet::new(), routes, alternate, keys }
    }

    /// Those of a virtual host that was created by that record.
    pub(crate) fn built_in(created: Index) -> impl Iterator<Item = Self> {
        BUILT_IN.iter().map(move |(name, kind)| {
            let (name, arguments) = (ShortStr::from_static(name), Bytes::new());
            let spec = ExchangeSpec {
                name,
                kind: *kind,
                durable: true,
                auto_delete: false,
                internal: false,
                replicate: Replicate::All,
                deduplicates: false,
                arguments,
            };
            Self::new(spec, created)
        })
    }

    pub(crate) fn is_built_in(&self) -> bool {
        BUILT_IN.iter().any(|(name, _)| name.as_bytes() == self.spec.name.as_bytes())
    }

    pub(crate) fn bindings(&self) -> impl Iterator<Item = &Arc<Binding>> {
        self.bindings.iter()
    }

    /// By its policies, if its arguments do not say.
    pub(crate) fn renew_alternate(&mut self, settings: Settings<'_>) {
        let by_policy = || settings.text(policies::ALTERNATE_EXCHANGE).and_then(|name| ShortStr::try_from(name).ok());
        self.alternate = own_alternate(&self.spec).or_else(by_policy);
    }

    pub(crate) fn alternate(&self) -> Option<&ShortStr> {
        self.alternate.as_ref()
    }

    pub(crate) fn has_bindings(&self) -> bool {
        !self.bindings.is_empty()
    }

    pub(crate) fn is_bound(&self, binding: &Binding) -> bool {
        self.bindings.contains(binding)
    }

    /// `binding` is not bound yet.
    pub(crate) fn bind(&mut self, binding: &Arc<Binding>) {
        self.bindings.insert(binding.clone());
        match &mut self.routes {
            Routes::Direct(by_key) => by_key.entry(binding.routing_key.clone()).or_default().push(binding.clone()),
            Routes::Fanout => {}
            Routes::Topic(trie) => trie.insert(binding.clone()),
            Routes::Headers(all) => all.push((HeaderMatch::parse(&binding.arguments), binding.clone())),
        }
    }

    /// The binding, if it was there.
    pub(crate) fn unbind(&mut self, binding: &Binding) -> Option<Arc<Binding>> {
        let binding = self.bindings.take(binding)?;
        match &mut self.routes {
            Routes::Direct(by_key) => {
                let left = by_key.get_mut(&binding.routing_key).map(|bound| {
                    remove_one(bound, |other| Arc::ptr_eq(other, &binding));
                    bound.len()
                });
                if left == Some(0) {
                    by_key.remove(&binding.routing_key);
                }
            }
            Routes::Fanout => {}
            Routes::Topic(trie) => trie.remove(&binding),
            Routes::Headers(all) => remove_one(all, |(_, other)| Arc::ptr_eq(other, &binding)),
        }
        Some(binding)
    }

    /// It knows the message already, and drops it.
    pub(crate) fn drops(&self, vhost: VhostId, message: &Routed<'_>) -> bool {
        let Some(keys) = &self.keys else { return false };
        !message.passing.pass(vhost, &self.spec.name, keys, message.headers())
    }

    /// Calls `found` with every binding that `message` takes; with several keys with some of them more than once.
    pub(crate) fn for_each_match(&self, message: &Routed<'_>, mut found: impl FnMut(&Arc<Binding>)) {
        match &self.routes {
            Routes::Direct(by_key) => {
                message.keys().filter_map(|key| by_key.get(key)).flatten().for_each(found);
            }
            Routes::Fanout => self.bindings.iter().for_each(found),
            Routes::Topic(trie) => message.keys().for_each(|key| trie.for_each_match(key.as_bytes(), &mut found)),
            Routes::Headers(all) => {
                for (matcher, binding) in all {
                    if matcher.matches(message.headers()) {
                        found(binding);
                    }
                }
            }
        }
    }
}

fn own_alternate(spec: &ExchangeSpec) -> Option<ShortStr> {
    let arguments = arguments::decode(&spec.arguments);
    let alternate = arguments.as_ref().and_then(|table| table.get(ALTERNATE_EXCHANGE)).and_then(FieldValue::as_bytes);
    alternate.cloned().and_then(ShortStr::new).map(|name| name.detached())
}

fn remove_one<T>(items: &mut Vec<T>, is_it: impl FnMut(&T) -> bool) {
    if let Some(place) = items.iter().position(is_it) {
        items.swap_remove(place);
    }
}
