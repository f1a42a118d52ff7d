//! Selective replication: queues and exchanges whose declare asks, by `x-understudy-replicate`, that the backups have less
//! of them than all.
//!
//! | value | on the backups | when another store's primary takes over |
//! | --- | --- | --- |
//! | `all` (the default) | all of it | nothing changes |
//! | `configuration` | the queue and its bindings, no message | the queue is there, empty |
//! | `none` | it is known, so that it can be cleared away | it is gone, with its bindings |
//!
//! An exchange has no messages, so there `configuration` is `all`. An exclusive queue is always `none`: it ends with its
//! connection, which ends with the primary. Who asks for nothing gets
//! what a policy says at that moment, or the cluster's default.
//!
//! A message for such queues is in the primary's log alone, at an index like any other, and each follower's log has a small
//! record at that index in its place ([`Record::for_followers`]): positions are the same everywhere, and so confirms and
//! deliveries wait for the commit as they do for others. A large message's parts are replicated, and dropped with it. What
//! the primary's own disk has survives its restart: if its store is the primary's again, with no other between, the
//! messages are there. Else the new primary empties and deletes, by records, so that every replica does, the old primary
//! too. A transaction's decision is one, over replicated and other queues alike.

use understudy_protocol::FieldTable;
use understudy_record::{BasePiece, Message, QueueId, Record, Replicate};

use crate::SELECTIVE_REPLICATION_SINCE;
use crate::arguments::REPLICATE;
use crate::core::Core;
use crate::effect::Outputs;
use crate::error::{Failure, precondition_failed};
use crate::policies::Settings;
use crate::state::State;

/// As arguments and policies say it.
pub(crate) fn replicate_named(name: &str) -> Option<Replicate> {
    match name {
        "all" => Some(Replicate::All),
        "configuration" => Some(Replicate::Configuration),
        "none" => Some(Replicate::Nothing),
        _ => None,
    }
}

impl Core {
    /// Of queues and exchanges that are declared from now on and do not say.
    pub fn set_default_replication(&mut self, replicate: Replicate) {
        self.default_replication = replicate;
    }

    /// For a checkpoint, before the topology's end: whose messages the queues hold that are not replicated.
    pub fn writer(&self) -> Option<BasePiece> {
        let needed = self.state.unreplicated > 0 || self.cluster_version >= SELECTIVE_REPLICATION_SINCE;
        self.state.writers[1].filter(|_| needed).map(|store| BasePiece::Writer { store })
    }

    /// `object`: `queue 'q' in vhost '/'`.
    pub(crate) fn replication(
        &self,
        table: &FieldTable,
        settings: Settings<'_>,
        object: &str,
    ) -> Result<Replicate, Failure> {
        let known = self.cluster_version >= SELECTIVE_REPLICATION_SINCE;
        let Some(value) = table.get(REPLICATE) else {
            return Ok(if known { settings.replicate().unwrap_or(self.default_replication) } else { Replicate::All });
        };
        let invalid = |why: String| precondition_failed(format!("invalid arg '{REPLICATE}' for {object}: {why}"));
        let wanted = match value.as_str() {
            Some(text) => replicate_named(text)
                .ok_or_else(|| invalid(format!("'{text}'; expected all, configuration or none")))?,
            None => {
                return Err(invalid(format!("type {}; expected all, configuration or none", value.type_name())));
            }
        };
        if wanted != Replicate::All && !known {
            return Err(invalid(
                "not every replica of this cluster has a version that knows it; upgrade them all".into(),
            ));
        }
        Ok(wanted)
    }

    pub(crate) fn replication_of_exclusive(&self) -> Replicate {
        if self.cluster_version >= SELECTIVE_REPLICATION_SINCE { Replicate::Nothing } else { Replicate::All }
    }

    pub(crate) fn publish_record(&self, targets: Vec<QueueId>, message: Message) -> Record {
        match self.state.split(targets) {
            (targets, here) if here.is_empty() => Record::Publish { targets, message },
            (targets, here) => Record::PublishHere { targets, here, message },
        }
    }

    pub(crate) fn staged_record(&self, targets: Vec<QueueId>, message: Message) -> Record {
        match self.state.split(targets) {
            (targets, here) if here.is_empty() => Record::Staged { targets, message },
            (targets, here) => Record::StagedHere { targets, here, message },
        }
    }

    /// A new primary whose store was not the last primary's: what only that one had is nobody's.
    pub(crate) fn clear_unreplicated(&mut self, out: &mut Outputs) {
        let [before, now] = self.state.writers;
        if before == now {
            return;
        }
        let queues = self.state.queues.values().filter(|queue| !queue.is_replicated());
        let mut queues: Vec<_> = queues.map(|queue| (queue.id, queue.spec.replicate)).collect();
        queues.sort_unstable_by_key(|(queue, _)| *queue);
        for (queue, replicate) in queues {
            match replicate {
                Replicate::All => {}
                // Whatever is in it here, on the old primary there is more.
                Replicate::Configuration => {
                    let up_to = self.state.last_index;
                    self.write(Record::Purge { queue, up_to, except: Vec::new() }, out);
                }
                Replicate::Nothing => self.delete_queue(queue, out),
            }
        }
        for vhost in self.state.vhosts.iter().map(|vhost| vhost.id).collect::<Vec<_>>() {
            let exchanges = self.state.vhost(vhost).exchanges.values().map(|exchange| &exchange.spec);
            let exchanges = exchanges.filter(|spec| spec.replicate == Replicate::Nothing);
            let mut exchanges: Vec<_> = exchanges.map(|spec| spec.name.clone()).collect();
            exchanges.sort_unstable();
            for name in exchanges {
                // An exchange bound to one that was deleted may have gone with its last binding.
                if self.state.vhost(vhost).exchanges.contains_key(&name) {
                    self.remove_exchange(vhost, name, out);
                }
            }
        }
    }
}

impl State {
    /// The queue's messages are its primary's alone.
    pub(crate) fn is_unreplicated(&self, queue: QueueId) -> bool {
        // Mostly there is none, and nothing to look up.
        self.unreplicated > 0 && self.queues.get(&queue).is_some_and(|queue| !queue.is_replicated())
    }

    /// First: those whose messages are replicated. Both in the order they came in.
    fn split(&self, targets: Vec<QueueId>) -> (Vec<QueueId>, Vec<QueueId>) {
        match self.unreplicated {
            0 => (targets, Vec::new()),
            _ => targets.into_iter().partition(|queue| !self.is_unreplicated(*queue)),
        }
    }
}
