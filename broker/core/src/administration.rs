//! What administrators ask for, by names, on a primary: virtual hosts, users, permissions, limits, policies; and the definitions that are
//! brought in from another broker's export. Each becomes a record, or none if it is so already. What follows for clients that
//! are connected happens here too:
//!
//! - A new password is asked for at the next login; who is connected stays.
//! - Permissions hold from the next command on, for who is connected too.
//! - A user's or virtual host's end closes its connections, once it is committed.
//! - A limit counts for what comes after it; what is beyond it already stays.

use std::collections::BTreeMap;

use bytes::Bytes;
use understudy_record::{
    Admin, ExchangeKind, Index, PasswordHash, Permission, PolicySpec, QueueId, Record, ShortStr, TopicPermission,
    UserLimits, UserSpec, VhostId, VhostLimits, VhostSpec,
};

use crate::access::{check_pattern, check_topic_pattern};
use crate::accounts::GUEST;
use crate::client::Origin;
use crate::command::{Account, ChannelId, ConnectionId};
use crate::core::Core;
use crate::definitions::BindingDefinition;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::session::Connection;
use crate::{ADMINISTRATION_SINCE, MAX_PERMISSIONS, MAX_TAGS, MAX_TEXT_BYTES, MAX_USERS, MAX_VHOSTS};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// One that is there is left as it is. It is as it should be if its description and tags are these, or none are given.
    AddVhost(VhostSpec),
    DeleteVhost {
        name: ShortStr,
    },
    /// One that is not there yet.
    AddUser(UserSpec),
    /// As it is from here on, whether it is there or not.
    PutUser(UserSpec),
    SetPassword {
        user: ShortStr,
        password: PasswordHash,
    },
    SetTags {
        user: ShortStr,
        tags: Vec<ShortStr>,
    },
    DeleteUser {
        name: ShortStr,
    },
    SetPermission {
        user: ShortStr,
        vhost: ShortStr,
        permission: Permission,
    },
    ClearPermission {
        user: ShortStr,
        vhost: ShortStr,
    },
    SetTopicPermission {
        user: ShortStr,
        vhost: ShortStr,
        exchange: ShortStr,
        permission: TopicPermission,
    },
    /// Without an exchange: all of the user's in that virtual host.
    ClearTopicPermission {
        user: ShortStr,
        vhost: ShortStr,
        exchange: Option<ShortStr>,
    },
    /// `value` `None`: no limit any more.
    SetLimit {
        of: LimitOf,
        limit: Limit,
        value: Option<u64>,
    },
    /// In the place of the one of this name, if there is one; here and below of operators' policies, or of the others.
    SetPolicy {
        vhost: ShortStr,
        operator: bool,
        policy: PolicySpec,
    },
    ClearPolicy {
        vhost: ShortStr,
        operator: bool,
        name: ShortStr,
    },
    DeclareExchange {
        vhost: ShortStr,
        name: ShortStr,
        kind: ExchangeKind,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Bytes,
    },
    DeclareQueue {
        vhost: ShortStr,
        name: ShortStr,
        durable: bool,
        auto_delete: bool,
        arguments: Bytes,
    },
    Bind(BindingDefinition),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOf {
    Vhost(ShortStr),
    User(ShortStr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Of either.
    MaxConnections,
    /// Of a virtual host.
    MaxQueues,
    /// Of a user.
    MaxChannels,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is there, and is not what is asked for.
    #[error("{0}")]
    Differs(String),
    #[error("{0}")]
    Refused(String),
}

/// Who may log in, as far as the log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    pub users: BTreeMap<ShortStr, PasswordHash>,
    /// `guest` is there without a record.
    pub has_open_guest: bool,
}

type Outcome = Result<bool, Refusal>;

pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Refused(why.into()))
}

impl Core {
    /// Carries out one command. `true`: something has changed, by the records up to the present last one.
    ///
    /// # Errors
    /// If it cannot be; nothing has changed.
    pub fn administer(&mut self, command: AdminCommand, out: &mut Outputs) -> Outcome {
        let before = self.last_index();
        match command {
            AdminCommand::AddVhost(spec) => self.add_vhost(spec, out)?,
            AdminCommand::DeleteVhost { name } => self.delete_vhost(&name, out)?,
            AdminCommand::AddUser(spec) => {
                if self.state.accounts.user(&spec.name).is_some() || self.is_open_guest(&spec.name) {
                    return Err(Refusal::Differs(format!("user '{}' exists already", spec.name)));
                }
                self.put_user(spec, out)?;
            }
            AdminCommand::PutUser(spec) => self.put_user(spec, out)?,
            AdminCommand::SetPassword { user, password } => {
                let tags = self.known_user(&user, out)?.tags;
                self.put_user(UserSpec { name: user, password, tags }, out)?;
            }
            AdminCommand::SetTags { user, tags } => {
                let password = self.recorded_user(&user)?.password;
                self.put_user(UserSpec { name: user, password, tags }, out)?;
            }
            AdminCommand::DeleteUser { name } => self.delete_user(name, out)?,
            AdminCommand::SetPermission { user, vhost, permission } => {
                self.set_permission(user, &vhost, permission, out)?;
            }
            AdminCommand::ClearPermission { user, vhost } => {
                let vhost = self.vhost_id(&vhost)?;
                self.recorded_user(&user)?;
                if self.state.accounts.permission(&user, vhost).is_some() {
                    self.write_admin(Admin::PermissionDelete { user: user.clone(), vhost }, out)?;
                    self.renew_access(Some(&user), Some(vhost));
                }
            }
            AdminCommand::SetTopicPermission { user, vhost, exchange, permission } => {
                self.set_topic_permission(user, &vhost, exchange, permission, out)?;
            }
            AdminCommand::ClearTopicPermission { user, vhost, exchange } => {
                let vhost = self.vhost_id(&vhost)?;
                self.recorded_user(&user)?;
                let of_user = self.state.accounts.topic_permissions_of(&user, vhost);
                let of_user = of_user.map(|(at, _)| at.clone());
                let cleared: Vec<_> =
                    of_user.filter(|at| exchange.as_ref().is_none_or(|exchange| exchange == at)).collect();
                for exchange in cleared {
                    self.write_admin(Admin::TopicPermissionDelete { user: user.clone(), vhost, exchange }, out)?;
                }
                self.renew_access(Some(&user), Some(vhost));
            }
            AdminCommand::SetLimit { of, limit, value } => self.set_limit(of, limit, value, out)?,
            AdminCommand::SetPolicy { vhost, operator, policy } => self.set_policy(&vhost, operator, policy, out)?,
            AdminCommand::ClearPolicy { vhost, operator, name } => self.clear_policy(&vhost, operator, name, out)?,
            command @ (AdminCommand::DeclareExchange { .. } | AdminCommand::DeclareQueue { .. }) => {
                self.declare_as_defined(command, out)?;
            }
            AdminCommand::Bind(binding) => self.bind_as_defined(binding, out)?,
        }
        Ok(self.last_index() > before)
    }

    // ---- virtual hosts

    fn add_vhost(&mut self, spec: VhostSpec, out: &mut Outputs) -> Result<(), Refusal> {
        if let Some(known) = self.state.vhosts.named(&spec.name) {
            let unsaid = spec.description.is_empty() && spec.tags.is_empty();
            return match unsaid || known.spec == spec {
                true => Ok(()),
                false => Err(Refusal::Differs(format!(
                    "virtual host '{}' exists with another description or other tags",
                    spec.name
                ))),
            };
        }
        if spec.name.is_empty() {
            return refused("a virtual host needs a name");
        }
        check_size(&[&spec.description], &spec.tags)?;
        if self.state.vhosts.len() >= MAX_VHOSTS {
            return refused(format!("there are {MAX_VHOSTS} virtual hosts, the most there may be"));
        }
        self.write_admin(Admin::VhostCreate(spec), out)
    }

    fn delete_vhost(&mut self, name: &ShortStr, out: &mut Outputs) -> Result<(), Refusal> {
        let vhost = self.vhost_id(name)?;
        if vhost == VhostId::DEFAULT {
            return refused(format!("virtual host '{name}' cannot be deleted"));
        }
        self.check_version()?;
        let closed = self.end_connections(|connection| connection.vhost == vhost, out);
        // Nobody consumes from its queues any more, or waits for a message of theirs.
        let mut queues: Vec<QueueId> = self.state.vhost(vhost).names.values().copied().collect();
        queues.sort_unstable();
        let mut sessions = Vec::new();
        for id in queues {
            self.settled.remove(&id);
            if let Some(queue) = self.state.queues.get_mut(&id) {
                sessions.push((id, std::mem::take(&mut queue.session)));
            }
        }
        self.write_admin(Admin::VhostDelete { vhost }, out)?;
        let gate = self.last_index();
        for (id, session) in sessions {
            self.end_queue_session(id, session, gate, out);
        }
        self.close_once_committed(gate, closed, error::deleted("vhost", name));
        self.rules.retain(|(_, at), _| *at != vhost);
        Ok(())
    }

    /// What these had is given back, and nothing is heard of them any more; they are told with the commit of what ends them.
    fn end_connections(&mut self, ended: impl Fn(&Connection) -> bool, out: &mut Outputs) -> Vec<ConnectionId> {
        let of = self.connections.iter().filter(|(_, connection)| !connection.failed && ended(connection));
        let mut closed: Vec<_> = of.map(|(id, _)| *id).collect();
        closed.sort_unstable();
        for id in &closed {
            self.close_channels(*id, out);
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.failed = true;
            let exclusive = std::mem::take(&mut connection.exclusive_queues);
            exclusive.into_iter().for_each(|queue| self.delete_queue(queue, out));
        }
        closed
    }

    fn close_once_committed(&mut self, gate: Index, closed: Vec<ConnectionId>, failure: Failure) {
        if !closed.is_empty() {
            let error = failure.of(understudy_protocol::MethodId::NONE);
            let closed = closed.into_iter().map(|id| (id, error.clone()));
            self.closing.entry(gate).or_default().extend(closed);
        }
    }

    /// Connections whose user, or virtual host, is gone for good.
    pub(crate) fn close_deleted(&mut self, out: &mut Outputs) {
        // Nearly always there is none.
        while let Some(first) = self.closing.first_entry().filter(|first| *first.key() <= self.committed) {
            for (connection, error) in first.remove() {
                let origin = Origin { connection, channel: ChannelId(0) };
                self.emit(origin, EffectKind::CloseConnection { error }, out);
            }
        }
    }

    // ---- users

    fn is_open_guest(&self, name: &ShortStr) -> bool {
        name.as_bytes() == GUEST.as_bytes() && self.state.accounts.has_open_guest()
    }

    /// A user that the log has. `guest`, where it is there without a record, has no password there: whatever else is to be
    /// recorded of it would shut out everybody who logs in as it.
    fn recorded_user(&self, name: &ShortStr) -> Result<UserSpec, Refusal> {
        if self.is_open_guest(name) {
            return refused(
                "user 'guest' has no password of its own yet: set one first (`understudy user password guest`)",
            );
        }
        let Some(user) = self.state.accounts.user(name) else { return refused(format!("there is no user '{name}'")) };
        Ok(UserSpec { name: name.clone(), password: user.password.clone(), tags: user.tags.clone() })
    }

    /// The same, of whom the password is about to be set. `guest` gets a record first: an administrator that may do everything in
    /// the virtual hosts there are.
    fn known_user(&mut self, name: &ShortStr, out: &mut Outputs) -> Result<UserSpec, Refusal> {
        if self.is_open_guest(name) {
            let tags = vec![ShortStr::from_static("administrator")];
            self.put_user(UserSpec { name: name.clone(), password: PasswordHash::default(), tags }, out)?;
            let all = || ".*".to_owned();
            for vhost in self.state.vhosts.iter().map(|vhost| vhost.id).collect::<Vec<_>>() {
                let permission = Permission { configure: all(), write: all(), read: all() };
                self.write_admin(Admin::PermissionPut { user: name.clone(), vhost, permission }, out)?;
            }
            self.renew_access(Some(name), None);
        }
        self.recorded_user(name)
    }

    fn put_user(&mut self, spec: UserSpec, out: &mut Outputs) -> Result<(), Refusal> {
        if spec.name.is_empty() {
            return refused("a user needs a name");
        }
        if std::str::from_utf8(spec.name.as_bytes()).is_err() {
            return refused("a user's name is text");
        }
        check_size(&[&spec.password.text], &spec.tags)?;
        let known = self.state.accounts.user(&spec.name);
        if known.is_some_and(|user| user.password == spec.password && user.tags == spec.tags) {
            return Ok(());
        }
        if known.is_none() && self.state.accounts.counts()[0] >= MAX_USERS {
            return refused(format!("there are {MAX_USERS} users, the most there may be"));
        }
        let name = spec.name.clone();
        self.write_admin(Admin::UserPut(spec), out)?;
        self.renew_access(Some(&name), None);
        Ok(())
    }

    fn delete_user(&mut self, name: ShortStr, out: &mut Outputs) -> Result<(), Refusal> {
        if self.state.accounts.user(&name).is_none() && !self.is_open_guest(&name) {
            return refused(format!("there is no user '{name}'"));
        }
        self.check_version()?;
        let of_user = |connection: &Connection| {
            connection.info.account != Account::Elsewhere && connection.info.user.as_bytes() == name.as_bytes()
        };
        let closed = self.end_connections(of_user, out);
        self.write_admin(Admin::UserDelete { name: name.clone() }, out)?;
        self.close_once_committed(self.last_index(), closed, error::deleted("user", &name));
        self.rules.retain(|(user, _), _| *user != name);
        Ok(())
    }

    fn set_permission(
        &mut self,
        user: ShortStr,
        vhost: &ShortStr,
        permission: Permission,
        out: &mut Outputs,
    ) -> Result<(), Refusal> {
        let vhost = self.vhost_id(vhost)?;
        for text in [&permission.configure, &permission.write, &permission.read] {
            check_size(&[text], &[])?;
            check_pattern(text).or_else(|why| refused(format!("'{text}' is no pattern: {why}")))?;
        }
        self.recorded_user(&user)?;
        if self.state.accounts.permission(&user, vhost) == Some(&permission) {
            return Ok(());
        }
        if self.state.accounts.counts()[1] >= MAX_PERMISSIONS {
            return refused(format!("there are {MAX_PERMISSIONS} permissions, the most there may be"));
        }
        self.write_admin(Admin::PermissionPut { user: user.clone(), vhost, permission }, out)?;
        self.renew_access(Some(&user), Some(vhost));
        Ok(())
    }

    fn set_topic_permission(
        &mut self,
        user: ShortStr,
        vhost: &ShortStr,
        exchange: ShortStr,
        permission: TopicPermission,
        out: &mut Outputs,
    ) -> Result<(), Refusal> {
        let vhost = self.vhost_id(vhost)?;
        for text in [&permission.write, &permission.read] {
            check_size(&[text], &[])?;
            check_topic_pattern(text).or_else(|why| refused(format!("'{text}' is no pattern: {why}")))?;
        }
        self.recorded_user(&user)?;
        if self.state.accounts.topic_permission(&user, vhost, &exchange) == Some(&permission) {
            return Ok(());
        }
        if self.state.accounts.counts()[2] >= MAX_PERMISSIONS {
            return refused(format!("there are {MAX_PERMISSIONS} topic permissions, the most there may be"));
        }
        self.write_admin(Admin::TopicPermissionPut { user: user.clone(), vhost, exchange, permission }, out)?;
        self.renew_access(Some(&user), Some(vhost));
        Ok(())
    }

    fn set_limit(&mut self, of: LimitOf, limit: Limit, value: Option<u64>, out: &mut Outputs) -> Result<(), Refusal> {
        match of {
            LimitOf::Vhost(name) => {
                let vhost = self.vhost_id(&name)?;
                let known = self.state.vhost(vhost).limits;
                let limits = match limit {
                    Limit::MaxConnections => VhostLimits { max_connections: value, ..known },
                    Limit::MaxQueues => VhostLimits { max_queues: value, ..known },
                    Limit::MaxChannels => return refused("a virtual host has no limit of channels; a user has"),
                };
                if limits != known {
                    self.write_admin(Admin::VhostLimits { vhost, limits }, out)?;
                }
            }
            LimitOf::User(user) => {
                if limit == Limit::MaxQueues {
                    return refused("a user has no limit of queues; a virtual host has");
                }
                self.recorded_user(&user)?;
                let known = self.state.accounts.user(&user).map(|user| user.limits).unwrap_or_default();
                let limits = match limit {
                    Limit::MaxConnections => UserLimits { max_connections: value, ..known },
                    Limit::MaxChannels => UserLimits { max_channels: value, ..known },
                    Limit::MaxQueues => known,
                };
                if limits != known {
                    self.write_admin(Admin::UserLimits { user, limits }, out)?;
                }
            }
        }
        Ok(())
    }

    /// How far publishers may have their confirms.
    pub fn confirmable(&self) -> Index {
        self.confirmable
    }

    /// Who may log in, if that is not what it was at the change of that number; and the number of this one.
    pub fn login_since(&self, version: Option<u64>) -> Option<(u64, Login)> {
        let accounts = &self.state.accounts;
        (version != Some(accounts.version())).then(|| {
            let users = accounts.users().map(|(name, user)| (name.clone(), user.password.clone())).collect();
            (accounts.version(), Login { users, has_open_guest: accounts.has_open_guest() })
        })
    }

    // ---- all of them

    pub(crate) fn vhost_id(&self, name: &ShortStr) -> Result<VhostId, Refusal> {
        let vhost = self.state.vhosts.named(name);
        vhost.map(|vhost| vhost.id).ok_or_else(|| Refusal::Refused(format!("there is no virtual host '{name}'")))
    }

    fn check_version(&self) -> Result<(), Refusal> {
        match self.cluster_version < ADMINISTRATION_SINCE {
            true => refused(
                "virtual hosts, users, permissions, limits and policies need a version of the broker that not every replica of this \
                 cluster has yet; upgrade them all",
            ),
            false => Ok(()),
        }
    }

    /// In the default virtual host records are as they always were.
    pub(crate) fn check_writable(&self, vhost: VhostId) -> Result<(), Refusal> {
        if vhost == VhostId::DEFAULT { Ok(()) } else { self.check_version() }
    }

    pub(crate) fn write_admin(&mut self, change: Admin, out: &mut Outputs) -> Result<(), Refusal> {
        self.check_version()?;
        self.write(Record::Admin(change), out);
        Ok(())
    }
}

/// `there`: what was asked for is, as something else.
pub(crate) fn refusal(there: bool, failure: &Failure) -> Refusal {
    if there { Refusal::Differs(failure.text()) } else { Refusal::Refused(failure.text()) }
}

fn check_size(texts: &[&String], tags: &[ShortStr]) -> Result<(), Refusal> {
    if texts.iter().any(|text| text.len() > MAX_TEXT_BYTES) {
        return refused(format!("a text of more than {MAX_TEXT_BYTES} octets"));
    }
    if tags.len() > MAX_TAGS {
        return refused(format!("more than {MAX_TAGS} tags"));
    }
    Ok(())
}
