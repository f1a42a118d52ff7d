//! Users and what they may do where, as the log has them. Whether a password is right is for the shell to find out, what a
//! pattern matches for `access`.
//!
//! One user, `guest` with the password `guest`, exists without a record and may do everything; it does so until a record names
//! it. Whether such a user may log in at all is the shell's to say, as are users that it knows from elsewhere: neither has any
//! place here.

use std::collections::BTreeMap;

use understudy_record::{
    Admin, Index, PasswordHash, Permission, ShortStr, TopicPermission, UserLimits, UserSpec, VhostId,
};

use crate::state::ApplyError;

/// The user that exists without a record.
pub const GUEST: &str = "guest";

#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) password: PasswordHash,
    pub(crate) tags: Vec<ShortStr>,
    pub(crate) limits: UserLimits,
}

#[derive(Debug)]
pub(crate) struct Accounts {
    users: BTreeMap<ShortStr, User>,
    /// No record has named `guest` yet.
    has_open_guest: bool,
    permissions: BTreeMap<(ShortStr, VhostId), Permission>,
    topic_permissions: BTreeMap<(ShortStr, VhostId, ShortStr), TopicPermission>,
    /// So often have users changed: who has a copy knows by this whether it is still right.
    version: u64,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            users: BTreeMap::new(),
            has_open_guest: true,
            permissions: BTreeMap::new(),
            topic_permissions: BTreeMap::new(),
            version: 0,
        }
    }
}

impl Accounts {
    /// On an error nothing has changed. Virtual hosts that are named are there.
    pub(crate) fn apply(&mut self, index: Index, change: &Admin) -> Result<(), ApplyError> {
        let unknown = |user: &ShortStr| ApplyError::UnknownUser { index, user: user.clone() };
        match change {
            Admin::UserPut(UserSpec { name, password, tags }) => {
                let limits = self.users.get(name).map(|user| user.limits).unwrap_or_default();
                let tags = tags.iter().map(ShortStr::detached).collect();
                self.users.insert(name.detached(), User { password: password.clone(), tags, limits });
                self.has_open_guest &= name.as_bytes() != GUEST.as_bytes();
            }
            Admin::UserDelete { name } => {
                let is_open_guest = self.has_open_guest && name.as_bytes() == GUEST.as_bytes();
                if self.users.remove(name).is_none() && !is_open_guest {
                    return Err(unknown(name));
                }
                self.has_open_guest &= !is_open_guest;
                self.permissions.retain(|(user, _), _| user != name);
                self.topic_permissions.retain(|(user, ..), _| user != name);
            }
            Admin::PermissionPut { user, vhost, permission } => {
                self.users.get(user).ok_or_else(|| unknown(user))?;
                self.permissions.insert((user.detached(), *vhost), permission.clone());
            }
            Admin::PermissionDelete { user, vhost } => {
                let removed = self.permissions.remove(&(user.clone(), *vhost));
                removed.ok_or_else(|| unknown(user))?;
            }
            Admin::TopicPermissionPut { user, vhost, exchange, permission } => {
                self.users.get(user).ok_or_else(|| unknown(user))?;
                let key = (user.detached(), *vhost, exchange.detached());
                self.topic_permissions.insert(key, permission.clone());
            }
            Admin::TopicPermissionDelete { user, vhost, exchange } => {
                let removed = self.topic_permissions.remove(&(user.clone(), *vhost, exchange.clone()));
                removed.ok_or_else(|| unknown(user))?;
            }
            Admin::UserLimits { user, limits } => {
                self.users.get_mut(user).ok_or_else(|| unknown(user))?.limits = *limits;
            }
            Admin::VhostCreate(_)
            | Admin::VhostDelete { .. }
            | Admin::VhostLimits { .. }
            | Admin::PolicyPut { .. }
            | Admin::PolicyDelete { .. } => {}
        }
        self.version += 1;
        Ok(())
    }

    pub(crate) fn forget_vhost(&mut self, id: VhostId) {
        self.permissions.retain(|(_, vhost), _| *vhost != id);
        self.topic_permissions.retain(|(_, vhost, _), _| *vhost != id);
    }

    /// All of it as the changes that make it, in an order that can be applied.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Admin> {
        let users = self.users.iter().flat_map(|(name, user)| {
            let spec = UserSpec { name: name.clone(), password: user.password.clone(), tags: user.tags.clone() };
            let limits = Admin::UserLimits { user: name.clone(), limits: user.limits };
            [Some(Admin::UserPut(spec)), (user.limits != UserLimits::default()).then_some(limits)]
        });
        let guest = ShortStr::from_static(GUEST);
        let no_guest = !self.has_open_guest && !self.users.contains_key(&guest);
        let no_guest = no_guest.then_some(Admin::UserDelete { name: guest });
        let permissions = self.permissions.iter().map(|((user, vhost), permission)| Admin::PermissionPut {
            user: user.clone(),
            vhost: *vhost,
            permission: permission.clone(),
        });
        let topics = self.topic_permissions.iter();
        let topics = topics.map(|((user, vhost, exchange), permission)| Admin::TopicPermissionPut {
            user: user.clone(),
            vhost: *vhost,
            exchange: exchange.clone(),
            permission: permission.clone(),
        });
        users.flatten().chain(no_guest).chain(permissions).chain(topics)
    }

    // ---- reading

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn has_open_guest(&self) -> bool {
        self.has_open_guest
    }

    pub(crate) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// Users, permissions, topic permissions.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.users.len(), self.permissions.len(), self.topic_permissions.len()]
    }

    pub(crate) fn user(&self, name: &ShortStr) -> Option<&User> {
        self.users.get(name)
    }

    /// In the order of their names.
    pub(crate) fn users(&self) -> impl Iterator<Item = (&ShortStr, &User)> {
        self.users.iter()
    }

    pub(crate) fn permission(&self, user: &ShortStr, vhost: VhostId) -> Option<&Permission> {
        self.permissions.get(&(user.clone(), vhost))
    }

    pub(crate) fn permissions(&self) -> impl Iterator<Item = (&ShortStr, VhostId, &Permission)> {
        self.permissions.iter().map(|((user, vhost), permission)| (user, *vhost, permission))
    }

    pub(crate) fn topic_permission(
        &self,
        user: &ShortStr,
        vhost: VhostId,
        exchange: &ShortStr,
    ) -> Option<&TopicPermission> {
        self.topic_permissions.get(&(user.clone(), vhost, exchange.clone()))
    }

    pub(crate) fn topic_permissions(&self) -> impl Iterator<Item = (&ShortStr, VhostId, &ShortStr, &TopicPermission)> {
        self.topic_permissions.iter().map(|((user, vhost, exchange), permission)| (user, *vhost, exchange, permission))
    }

    /// What it has for one user in one virtual host, by exchange.
    pub(crate) fn topic_permissions_of(
        &self,
        user: &ShortStr,
        vhost: VhostId,
    ) -> impl Iterator<Item = (&ShortStr, &TopicPermission)> {
        let first = (user.clone(), vhost, ShortStr::EMPTY);
        let here = self.topic_permissions.range(first..).take_while({
            let user = user.clone();
            move |((other, at, _), _)| *other == user && *at == vhost
        });
        here.map(|((_, _, exchange), permission)| (exchange, permission))
    }
}
