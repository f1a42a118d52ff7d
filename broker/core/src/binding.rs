//! Binding and unbinding, of queues and of exchanges.

use bytes::Bytes;
use understudy_protocol::FieldValue;
use understudy_record::{Binding, Destination, ExchangeKind, Record, ShortStr, VhostId};

use crate::arguments;
use crate::client::{Caller, Origin};
use crate::command::Command;
use crate::core::Core;
use crate::declare::refuse_default_exchange;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::headers::HeaderMatch;

/// What a bind asks for, beside the destination.
#[derive(Debug)]
pub(crate) struct BindWish {
    pub(crate) source: ShortStr,
    pub(crate) routing_key: ShortStr,
    pub(crate) arguments: Bytes,
}

impl Core {
    /// Binding what is bound succeeds.
    pub(crate) fn bind(&mut self, caller: Caller, command: Command, out: &mut Outputs) -> Result<(), Failure> {
        let Caller { origin, vhost } = caller;
        let (binding, no_wait, reply) = match command {
            Command::QueueBind { queue, exchange, routing_key, no_wait, arguments } => {
                let (queue, routing_key) = self.resolve_with_key(origin, queue, routing_key)?;
                let wish = BindWish { source: exchange, routing_key, arguments };
                (self.queue_binding(vhost, Some(origin), &queue, wish)?, no_wait, EffectKind::QueueBindOk)
            }
            Command::ExchangeBind { destination, source, routing_key, no_wait, arguments } => {
                let wish = BindWish { source, routing_key, arguments };
                (self.exchange_binding(vhost, destination, wish)?, no_wait, EffectKind::ExchangeBindOk)
            }
            _ => return Ok(()),
        };
        self.ensure_bound(vhost, binding, out);
        self.reply_after(self.state.topology_index, no_wait, origin, reply, out);
        Ok(())
    }

    pub(crate) fn ensure_bound(&mut self, vhost: VhostId, binding: Binding, out: &mut Outputs) {
        if !self.is_bound(vhost, &binding) {
            self.write(Record::Bind(binding).within(vhost), out);
        }
    }

    /// The binding that is asked for. `by`: who asks, if it is a client.
    pub(crate) fn queue_binding(
        &self,
        vhost: VhostId,
        by: Option<Origin>,
        queue: &ShortStr,
        wish: BindWish,
    ) -> Result<Binding, Failure> {
        let BindWish { source, routing_key, arguments } = wish;
        refuse_default_exchange(&source)?;
        self.check_source(vhost, &source, &arguments)?;
        let queue = self.queue_named(vhost, queue)?;
        self.refuse_locked(queue, by)?;
        let destination = Destination::Queue(queue.id);
        Ok(Binding { source, destination, routing_key, arguments: arguments::sorted(&arguments)? })
    }

    /// The same with an exchange as destination.
    pub(crate) fn exchange_binding(
        &self,
        vhost: VhostId,
        destination: ShortStr,
        wish: BindWish,
    ) -> Result<Binding, Failure> {
        let BindWish { source, routing_key, arguments } = wish;
        refuse_default_exchange(&destination)?;
        refuse_default_exchange(&source)?;
        self.check_source(vhost, &source, &arguments)?;
        self.exchange_named(vhost, &destination)?;
        let destination = Destination::Exchange(destination);
        Ok(Binding { source, destination, routing_key, arguments: arguments::sorted(&arguments)? })
    }

    /// Unbinding what is not bound, or does not exist, succeeds.
    pub(crate) fn unbind(&mut self, caller: Caller, command: Command, out: &mut Outputs) -> Result<(), Failure> {
        let Caller { origin, vhost } = caller;
        let (binding, no_wait, reply) = match command {
            Command::QueueUnbind { queue, exchange, routing_key, arguments } => {
                let (queue, routing_key) = self.resolve_with_key(origin, queue, routing_key)?;
                refuse_default_exchange(&exchange)?;
                let arguments = arguments::sorted(&arguments)?;
                let mut bound = None;
                if let Ok(queue) = self.queue_named(vhost, &queue) {
                    let destination = Destination::Queue(queue.id);
                    let binding = Binding { source: exchange, destination, routing_key, arguments };
                    if self.is_bound(vhost, &binding) {
                        self.refuse_locked(queue, Some(origin))?;
                        bound = Some(binding);
                    }
                }
                (bound, false, EffectKind::QueueUnbindOk)
            }
            Command::ExchangeUnbind { destination, source, routing_key, no_wait, arguments } => {
                refuse_default_exchange(&destination)?;
                refuse_default_exchange(&source)?;
                let destination = Destination::Exchange(destination);
                let arguments = arguments::sorted(&arguments)?;
                let binding = Binding { source, destination, routing_key, arguments };
                (Some(binding), no_wait, EffectKind::ExchangeUnbindOk)
            }
            _ => return Ok(()),
        };
        if let Some(binding) = binding.filter(|binding| self.is_bound(vhost, binding)) {
            let source = binding.source.clone();
            self.write(Record::Unbind(binding).within(vhost), out);
            self.delete_unbound_exchanges(vhost, vec![source], out);
        }
        self.reply_after(self.state.topology_index, no_wait, origin, reply, out);
        Ok(())
    }

    fn is_bound(&self, vhost: VhostId, binding: &Binding) -> bool {
        self.state.vhost(vhost).exchanges.get(&binding.source).is_some_and(|exchange| exchange.is_bound(binding))
    }

    fn check_source(&self, vhost: VhostId, source: &ShortStr, arguments: &Bytes) -> Result<(), Failure> {
        let exchange = self.exchange_named(vhost, source)?;
        let table = arguments::decode(arguments).ok_or_else(error::malformed_table)?;
        match table.get("x-match") {
            Some(mode) if exchange.spec.kind == ExchangeKind::Headers => match mode {
                FieldValue::Text(mode) if HeaderMatch::is_valid_mode(mode) => Ok(()),
                FieldValue::Text(mode) => Err(error::precondition_failed(format!(
                    "Invalid x-match field value <<{:?}>>; expected all, any, all-with-x, or any-with-x",
                    String::from_utf8_lossy(mode)
                ))),
                mode => Err(error::precondition_failed(format!(
                    "Invalid x-match field type {} (value {mode}); expected longstr",
                    mode.type_name()
                ))),
            },
            _ => Ok(()),
        }
    }

    /// With neither queue nor key, both mean the queue last declared on the channel.
    fn resolve_with_key(
        &mut self,
        origin: Origin,
        queue: ShortStr,
        routing_key: ShortStr,
    ) -> Result<(ShortStr, ShortStr), Failure> {
        let both = queue.is_empty() && routing_key.is_empty();
        let queue = self.resolve(origin, queue)?;
        let routing_key = if both { queue.clone() } else { routing_key };
        Ok((queue, routing_key))
    }
}
