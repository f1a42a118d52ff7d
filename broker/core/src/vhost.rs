//! Virtual hosts: each has its own exchanges, names of queues, and bindings; nothing is routed from one to another. The queues
//! themselves, which are known by their ids, are the state's.
//!
//! The default one, `/`, exists without a record and cannot be deleted; it stands apart, so that finding it costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_record::{
    Binding, Destination, ExchangeSpec, Index, QueueId, ShortStr, VhostId, VhostLimits, VhostSpec,
};

use crate::exchange::{Exchange, Routed};
use crate::policies::{Concerned, Policies, Target};
use crate::state::{ApplyError, detached};

/// What the default virtual host is called.
pub const DEFAULT_VHOST: &str = "/";

#[derive(Debug)]
pub(crate) struct Vhost {
    pub(crate) id: VhostId,
    pub(crate) spec: VhostSpec,
    pub(crate) limits: VhostLimits,
    pub(crate) policies: Policies,
    pub(crate) exchanges: HashMap<ShortStr, Exchange>,
    /// Of its queues.
    pub(crate) names: HashMap<ShortStr, QueueId>,
    by_destination: HashMap<Destination, Vec<Arc<Binding>>>,
}

impl Vhost {
    /// With the exchanges that each has.
    pub(crate) fn new(id: VhostId, spec: VhostSpec) -> Self {
        let exchanges = Exchange::built_in(id.0).map(|exchange| (exchange.spec.name.clone(), exchange)).collect();
        let (names, by_destination) = (HashMap::new(), HashMap::new());
        let (limits, policies) = (VhostLimits::default(), Policies::default());
        Self { id, spec, limits, policies, exchanges, names, by_destination }
    }

    pub(crate) fn name(&self) -> &ShortStr {
        &self.spec.name
    }

    pub(crate) fn declare_exchange(&mut self, index: Index, spec: &ExchangeSpec) -> Result<(), ApplyError> {
        if self.exchanges.contains_key(&spec.name) {
            return Err(ApplyError::Exists { index, name: spec.name.clone() });
        }
        let spec = ExchangeSpec { name: spec.name.detached(), arguments: detached(&spec.arguments), ..*spec };
        let mut exchange = Exchange::new(spec, index);
        exchange.renew_alternate(self.policies.of(Target::Exchange, &exchange.spec.name));
        self.exchanges.insert(exchange.spec.name.clone(), exchange);
        Ok(())
    }

    /// Of its exchanges, as its policies are now.
    pub(crate) fn renew_alternates(&mut self, concerned: &Concerned) {
        for exchange in self.exchanges.values_mut().filter(|exchange| concerned.has(&exchange.spec.name)) {
            exchange.renew_alternate(self.policies.of(Target::Exchange, &exchange.spec.name));
        }
    }

    /// How many keys it remembered.
    pub(crate) fn delete_exchange(&mut self, index: Index, name: &ShortStr) -> Result<usize, ApplyError> {
        let exchange = match self.exchanges.get(name) {
            Some(exchange) if !exchange.is_built_in() => self.exchanges.remove(name),
            _ => None,
        };
        let exchange = exchange.ok_or_else(|| ApplyError::UnknownExchange { index, name: name.clone() })?;
        exchange.bindings().for_each(|binding| self.forget_destination(binding));
        self.unbind_destination(&Destination::Exchange(name.clone()));
        Ok(exchange.keys.as_ref().map_or(0, |keys| keys.len()))
    }

    /// A queue that is named as destination is there, and is one of this virtual host's.
    pub(crate) fn bind(&mut self, index: Index, binding: &Binding) -> Result<(), ApplyError> {
        if let Destination::Exchange(name) = &binding.destination
            && !self.exchanges.contains_key(name)
        {
            return Err(ApplyError::UnknownExchange { index, name: name.clone() });
        }
        let Some(exchange) = self.exchanges.get_mut(&binding.source) else {
            return Err(ApplyError::UnknownExchange { index, name: binding.source.clone() });
        };
        if exchange.is_bound(binding) {
            return Err(ApplyError::Binding { index, source_exchange: binding.source.clone() });
        }
        let binding = Arc::new(detached_binding(binding));
        exchange.bind(&binding);
        self.by_destination.entry(binding.destination.clone()).or_default().push(binding);
        Ok(())
    }

    pub(crate) fn unbind(&mut self, index: Index, binding: &Binding) -> Result<(), ApplyError> {
        let exchange = self.exchanges.get_mut(&binding.source);
        let binding = exchange
            .and_then(|exchange| exchange.unbind(binding))
            .ok_or_else(|| ApplyError::Binding { index, source_exchange: binding.source.clone() })?;
        self.forget_destination(&binding);
        Ok(())
    }

    pub(crate) fn unbind_destination(&mut self, destination: &Destination) {
        for binding in self.by_destination.remove(destination).unwrap_or_default() {
            if let Some(source) = self.exchanges.get_mut(&binding.source) {
                source.unbind(&binding);
            }
        }
    }

    fn forget_destination(&mut self, binding: &Arc<Binding>) {
        let left = self.by_destination.get_mut(&binding.destination).map(|bound| {
            if let Some(place) = bound.iter().position(|other| Arc::ptr_eq(other, binding)) {
                bound.swap_remove(place);
            }
            bound.len()
        });
        if left == Some(0) {
            self.by_destination.remove(&binding.destination);
        }
    }

    // ---- reading

    /// In no order.
    pub(crate) fn bindings_to(&self, destination: &Destination) -> impl Iterator<Item = &Binding> {
        self.by_destination.get(destination).into_iter().flatten().map(|binding| &**binding)
    }

    /// Exchanges that have a binding to `destination`, in order, each once.
    pub(crate) fn sources_of(&self, destination: &Destination) -> Vec<ShortStr> {
        let mut sources: Vec<_> = self.bindings_to(destination).map(|binding| binding.source.clone()).collect();
        sources.sort();
        sources.dedup();
        sources
    }

    /// The queues that a message published to `exchange` reaches, in order, each once. Bindings from exchange to exchange are
    /// followed, and where an exchange has none that takes it its alternate; each exchange is visited once, so cycles end.
    pub(crate) fn route(&self, exchange: &ShortStr, message: &Routed<'_>) -> Vec<QueueId> {
        if exchange.is_empty() && message.more_keys.is_empty() {
            return self.names.get(message.routing_key).copied().into_iter().collect();
        }
        let mut targets = Vec::new();
        let mut onward = Vec::new();
        self.collect_matches(exchange, message, &mut targets, &mut onward);
        let mut visited = 0;
        while let Some(next) = onward.get(visited).cloned() {
            visited += 1;
            if next != *exchange {
                self.collect_matches(&next, message, &mut targets, &mut onward);
            }
        }
        if targets.len() > 1 {
            targets.sort_unstable();
            targets.dedup();
        }
        targets
    }

    fn collect_matches(
        &self,
        name: &ShortStr,
        message: &Routed<'_>,
        targets: &mut Vec<QueueId>,
        onward: &mut Vec<ShortStr>,
    ) {
        if name.is_empty() {
            return targets.extend(message.keys().filter_map(|key| self.names.get(key)));
        }
        let Some(exchange) = self.exchanges.get(name) else { return };
        let mut taken = false;
        if !exchange.drops(self.id, message) {
            exchange.for_each_match(message, |binding| {
                taken = true;
                match &binding.destination {
                    Destination::Queue(queue) => targets.push(*queue),
                    Destination::Exchange(next) if !onward.contains(next) => onward.push(next.clone()),
                    Destination::Exchange(_) => {}
                }
            });
        }
        if let Some(alternate) = exchange.alternate().filter(|next| !taken && !onward.contains(next)) {
            onward.push(alternate.clone());
        }
    }
}

/// All there are.
#[derive(Debug)]
pub(crate) struct Vhosts {
    default: Vhost,
    others: BTreeMap<VhostId, Vhost>,
    by_name: HashMap<ShortStr, VhostId>,
}

impl Default for Vhosts {
    fn default() -> Self {
        let name = ShortStr::from_static(DEFAULT_VHOST);
        let by_name = [(name.clone(), VhostId::DEFAULT)].into();
        let spec = VhostSpec { name, description: "Default virtual host".to_owned(), tags: Vec::new() };
        Self { default: Vhost::new(VhostId::DEFAULT, spec), others: BTreeMap::new(), by_name }
    }
}

impl Vhosts {
    pub(crate) fn get(&self, id: VhostId) -> Option<&Vhost> {
        if id == VhostId::DEFAULT { Some(&self.default) } else { self.others.get(&id) }
    }

    pub(crate) fn get_mut(&mut self, id: VhostId) -> Option<&mut Vhost> {
        if id == VhostId::DEFAULT { Some(&mut self.default) } else { self.others.get_mut(&id) }
    }

    pub(crate) fn named(&self, name: &ShortStr) -> Option<&Vhost> {
        self.by_name.get(name).and_then(|id| self.get(*id))
    }

    pub(crate) fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// Oldest first, the default one before all others.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vhost> {
        std::iter::once(&self.default).chain(self.others.values())
    }

    /// `id` and name are nobody's yet.
    pub(crate) fn add(&mut self, id: VhostId, spec: &VhostSpec) {
        let spec = VhostSpec {
            name: spec.name.detached(),
            tags: spec.tags.iter().map(ShortStr::detached).collect(),
            description: spec.description.clone(),
        };
        self.by_name.insert(spec.name.clone(), id);
        self.others.insert(id, Vhost::new(id, spec));
    }

    /// `None`: there is none of this id, or it is the default one.
    pub(crate) fn remove(&mut self, id: VhostId) -> Option<Vhost> {
        let vhost = self.others.remove(&id)?;
        self.by_name.remove(vhost.name());
        Some(vhost)
    }
}

fn detached_binding(binding: &Binding) -> Binding {
    let destination = match &binding.destination {
        Destination::Queue(queue) => Destination::Queue(*queue),
        Destination::Exchange(name) => Destination::Exchange(name.detached()),
    };
    let (source, routing_key) = (binding.source.detached(), binding.routing_key.detached());
    Binding { source, destination, routing_key, arguments: detached(&binding.arguments) }
}
