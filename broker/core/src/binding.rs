//! Binding and unbinding, of queues and of exchanges.

use understudy_protocol::FieldValue;
use understudy_record::{Binding, Destination, ExchangeKind, Record, ShortStr};

use crate::arguments;
use crate::client::Origin;
use crate::command::Command;
use crate::core::Core;
use crate::declare::{refuse_default_exchange, refuse_locked};
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::headers::HeaderMatch;

impl Core {
    /// Binding what is bound succeeds.
    pub(crate) fn bind(&mut self, origin: Origin, command: Command, out: &mut Outputs) -> Result<(), Failure> {
        let (binding, no_wait, reply) = match command {
            Command::QueueBind { queue, exchange, routing_key, no_wait, arguments } => {
                let (queue, routing_key) = self.resolve_with_key(origin, queue, routing_key)?;
                refuse_default_exchange(&exchange)?;
                self.check_source(&exchange, &arguments)?;
                let queue = self.queue_named(&queue)?;
                refuse_locked(queue, origin)?;
                let destination = Destination::Queue(queue.id);
                let arguments = arguments::sorted(&arguments)?;
                (Binding { source: exchange, destination, routing_key, arguments }, no_wait, EffectKind::QueueBindOk)
            }
            Command::ExchangeBind { destination, source, routing_key, no_wait, arguments } => {
                refuse_default_exchange(&destination)?;
                refuse_default_exchange(&source)?;
                self.check_source(&source, &arguments)?;
                if !self.state.exchanges.contains_key(&destination) {
                    return Err(error::no_exchange(&destination));
                }
                let destination = Destination::Exchange(destination);
                let arguments = arguments::sorted(&arguments)?;
                (Binding { source, destination, routing_key, arguments }, no_wait, EffectKind::ExchangeBindOk)
            }
            _ => return Ok(()),
        };
        if !self.is_bound(&binding) {
            self.write(Record::Bind(binding), out);
        }
        self.reply_after(self.state.topology_index, no_wait, origin, reply, out);
        Ok(())
    }

    /// Unbinding what is not bound, or does not exist, succeeds.
    pub(crate) fn unbind(&mut self, origin: Origin, command: Command, out: &mut Outputs) -> Result<(), Failure> {
        let (binding, no_wait, reply) = match command {
            Command::QueueUnbind { queue, exchange, routing_key, arguments } => {
                let (queue, routing_key) = self.resolve_with_key(origin, queue, routing_key)?;
                refuse_default_exchange(&exchange)?;
                let arguments = arguments::sorted(&arguments)?;
                let mut bound = None;
                if let Ok(queue) = self.queue_named(&queue) {
                    let destination = Destination::Queue(queue.id);
                    let binding = Binding { source: exchange, destination, routing_key, arguments };
                    if self.is_bound(&binding) {
                        refuse_locked(queue, origin)?;
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
        if let Some(binding) = binding.filter(|binding| self.is_bound(binding)) {
            let source = binding.source.clone();
            self.write(Record::Unbind(binding), out);
            self.delete_unbound_exchanges(vec![source], out);
        }
        self.reply_after(self.state.topology_index, no_wait, origin, reply, out);
        Ok(())
    }

    fn is_bound(&self, binding: &Binding) -> bool {
        self.state.exchanges.get(&binding.source).is_some_and(|exchange| exchange.is_bound(binding))
    }

    fn check_source(&self, source: &ShortStr, arguments: &bytes::Bytes) -> Result<(), Failure> {
        let exchange = self.state.exchanges.get(source).ok_or_else(|| error::no_exchange(source))?;
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
