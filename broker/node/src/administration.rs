//! What administrators ask of the primary, and who may log in: requests wait here until what they led to may be confirmed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use understudy_core::{AdminCommand, Definitions, Refusal};
use understudy_record::Index;

use crate::{Node, Role};

/// Of each command: whether it has changed anything, or why it was not carried out.
pub type AdminOutcomes = Vec<Result<bool, Refusal>>;

/// The answer, or why nothing at all was done.
pub type AdminReply<T> = oneshot::Sender<Result<T, String>>;

/// Requests that wait for their records to be confirmable, in order of those. Each has a caller that waits: the shell bounds
/// them.
#[derive(Debug, Default)]
pub(crate) struct Administered {
    waiting: VecDeque<(Index, AdminOutcomes, AdminReply<AdminOutcomes>)>,
}

impl Node {
    /// All of them in this turn, whatever becomes of each. Their answers come together.
    pub(crate) fn administer(&mut self, commands: Vec<AdminCommand>, reply: AdminReply<AdminOutcomes>) {
        if let Err(reason) = self.may_administer() {
            _ = reply.send(Err(reason));
            return;
        }
        let outcomes = commands.into_iter().map(|command| self.core.administer(command, &mut self.out)).collect();
        let gate = self.core.last_index();
        if let Role::Primary(role) = &mut self.role {
            role.administered.waiting.push_back((gate, outcomes, reply));
        }
        self.answer_administered();
    }

    fn may_administer(&self) -> Result<(), String> {
        match &self.role {
            Role::Primary(role) if role.isolated => Err("another primary may exist: nothing is changed here".into()),
            Role::Primary(role) if role.hand_over.is_some() => Err("the primary is handing over: try again".into()),
            Role::Primary(_) => Ok(()),
            _ => Err(format!("{} is not the primary", self.me.name)),
        }
    }

    pub(crate) fn answer_administered(&mut self) {
        let confirmable = self.core.confirmable();
        let Role::Primary(role) = &mut self.role else { return };
        while let Some((_, outcomes, reply)) = role.administered.waiting.pop_front_if(|(gate, ..)| *gate <= confirmable)
        {
            _ = reply.send(Ok(outcomes)); // who asked may have gone
        }
    }

    pub(crate) fn read_definitions(&self, topology: bool, reply: AdminReply<Definitions>) {
        _ = reply.send(match &self.role {
            Role::Primary(_) => Ok(self.core.definitions(topology)),
            _ => Err(format!("{} is not the primary", self.me.name)),
        });
    }

    /// Connections verify passwords beside this thread: they get to know what against.
    pub(crate) fn publish_login(&mut self) {
        let Role::Primary(role) = &mut self.role else { return };
        if let Some((version, login)) = self.core.login_since(role.login_version) {
            role.login_version = Some(version);
            self.shared.login.send_replace(Arc::new(login));
        }
    }
}
