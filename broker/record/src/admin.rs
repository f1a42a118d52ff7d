//! What administrators change: virtual hosts, users, what these may do where, limits, and policies; and the bytes of it. Each change is
//! a record, and each thing that exists is written in a base as the change that makes it. Whether a password is right, and
//! what a pattern matches, is not known here.

use bytes::Bytes;

use crate::record::RecordError;
use crate::wire::{Reader, Writer};
use crate::{ShortStr, VhostId};

/// One change. What it names exists, or does not, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// The virtual host's id is this record's index. It has the exchanges that each has.
    VhostCreate(VhostSpec),
    /// Its queues with their messages, its exchanges, its bindings and what users may do in it go with it.
    VhostDelete {
        vhost: VhostId,
    },
    /// A new user, or another password or other tags of one; what it may do and its limits stay.
    UserPut(UserSpec),
    /// What it may do goes with it. Of the user that exists without a record: from here on it does not.
    UserDelete {
        name: ShortStr,
    },
    PermissionPut {
        user: ShortStr,
        vhost: VhostId,
        permission: Permission,
    },
    PermissionDelete {
        user: ShortStr,
        vhost: VhostId,
    },
    TopicPermissionPut {
        user: ShortStr,
        vhost: VhostId,
        exchange: ShortStr,
        permission: TopicPermission,
    },
    TopicPermissionDelete {
        user: ShortStr,
        vhost: VhostId,
        exchange: ShortStr,
    },
    VhostLimits {
        vhost: VhostId,
        limits: VhostLimits,
    },
    UserLimits {
        user: ShortStr,
        limits: UserLimits,
    },
    /// A new policy, or another one in the place of that of this name. `operator`, here and below: those are names of their own.
    PolicyPut {
        vhost: VhostId,
        operator: bool,
        policy: PolicySpec,
    },
    PolicyDelete {
        vhost: VhostId,
        operator: bool,
        name: ShortStr,
    },
}

/// What queues and exchanges get besides their arguments, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    pub name: ShortStr,
    /// A regular expression on names.
    pub pattern: String,
    pub apply_to: ApplyTo,
    /// The highest that matches is the only one that counts.
    pub priority: i64,
    /// An encoded AMQP table, without its length.
    pub definition: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ApplyTo {
    #[default]
    All,
    Queues,
    ClassicQueues,
    QuorumQueues,
    /// Of which there are none.
    Streams,
    Exchanges,
}

impl ApplyTo {
    const NAMES: [(Self, &str); 6] = [
        (Self::All, "all"),
        (Self::Queues, "queues"),
        (Self::ClassicQueues, "classic_queues"),
        (Self::QuorumQueues, "quorum_queues"),
        (Self::Streams, "streams"),
        (Self::Exchanges, "exchanges"),
    ];

    /// As RabbitMQ names it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(apply_to, _)| *apply_to == self).map_or("all", |(_, name)| name)
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(apply_to, _)| *apply_to)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostSpec {
    pub name: ShortStr,
    /// For people.
    pub description: String,
    pub tags: Vec<ShortStr>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct UserSpec {
    pub name: ShortStr,
    pub password: PasswordHash,
    pub tags: Vec<ShortStr>,
}

/// What a password is verified against. An empty `text` is no password's: nobody can log in by one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PasswordHash {
    pub algorithm: HashAlgorithm,
    /// As the algorithm writes it.
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// In PHC form: `$argon2id$…`.
    #[default]
    Argon2id,
    /// Base 64 of four octets of salt and the SHA-256 of salt and password, as RabbitMQ has it.
    RabbitSha256,
    /// The same with SHA-512.
    RabbitSha512,
}

/// Regular expressions on the names of queues and exchanges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    pub configure: String,
    pub write: String,
    pub read: String,
}

/// Regular expressions on routing keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPermission {
    pub write: String,
    pub read: String,
}

/// `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostLimits {
    pub max_connections: Option<u64>,
    pub max_queues: Option<u64>,
}

/// `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    pub max_connections: Option<u64>,
    pub max_channels: Option<u64>,
}

/// What a password hashes to is in no log of text.
impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} octets", self.algorithm, self.text.len())
    }
}

impl std::fmt::Debug for UserSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, password, tags } = self;
        f.debug_struct("UserSpec").field("name", name).field("password", password).field("tags", tags).finish()
    }
}

impl Admin {
    const VHOST_CREATE: u8 = 40;
    const VHOST_DELETE: u8 = 41;
    const USER_PUT: u8 = 43;
    const USER_DELETE: u8 = 44;
    const PERMISSION_PUT: u8 = 45;
    const PERMISSION_DELETE: u8 = 46;
    const TOPIC_PERMISSION_PUT: u8 = 47;
    const TOPIC_PERMISSION_DELETE: u8 = 48;
    const VHOST_LIMITS: u8 = 49;
    const USER_LIMITS: u8 = 50;
    const POLICY_PUT: u8 = 60;
    const POLICY_DELETE: u8 = 61;

    /// Whether a record with this tag is one.
    pub(crate) const fn is_tag(tag: u8) -> bool {
        matches!(
            tag,
            Self::VHOST_CREATE | Self::VHOST_DELETE | Self::USER_PUT
                ..=Self::USER_LIMITS | Self::POLICY_PUT | Self::POLICY_DELETE
        )
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        match self {
            Self::VhostCreate(spec) => write_vhost(w.u8(Self::VHOST_CREATE), spec),
            Self::VhostDelete { vhost } => _ = w.u8(Self::VHOST_DELETE).vhost(*vhost),
            Self::UserPut(spec) => {
                let algorithm = match spec.password.algorithm {
                    HashAlgorithm::Argon2id => 1,
                    HashAlgorithm::RabbitSha256 => 2,
                    HashAlgorithm::RabbitSha512 => 3,
                };
                w.u8(Self::USER_PUT).short(spec.name.as_bytes()).u8(algorithm).text(&spec.password.text);
                write_tags(w, &spec.tags);
            }
            Self::UserDelete { name } => _ = w.u8(Self::USER_DELETE).short(name.as_bytes()),
            Self::PermissionPut { user, vhost, permission: Permission { configure, write, read } } => {
                w.u8(Self::PERMISSION_PUT).short(user.as_bytes()).vhost(*vhost);
                w.text(configure).text(write).text(read);
            }
            Self::PermissionDelete { user, vhost } => {
                w.u8(Self::PERMISSION_DELETE).short(user.as_bytes()).vhost(*vhost);
            }
            Self::TopicPermissionPut { user, vhost, exchange, permission: TopicPermission { write, read } } => {
                w.u8(Self::TOPIC_PERMISSION_PUT).short(user.as_bytes()).vhost(*vhost).short(exchange.as_bytes());
                w.text(write).text(read);
            }
            Self::TopicPermissionDelete { user, vhost, exchange } => {
                w.u8(Self::TOPIC_PERMISSION_DELETE).short(user.as_bytes()).vhost(*vhost).short(exchange.as_bytes());
            }
            Self::VhostLimits { vhost, limits } => {
                w.u8(Self::VHOST_LIMITS).vhost(*vhost).limit(limits.max_connections).limit(limits.max_queues);
            }
            Self::UserLimits { user, limits } => {
                w.u8(Self::USER_LIMITS).short(user.as_bytes());
                w.limit(limits.max_connections).limit(limits.max_channels);
            }
            Self::PolicyPut { vhost, operator, policy } => {
                w.u8(Self::POLICY_PUT).vhost(*vhost).bool(*operator);
                write_policy(w, policy);
            }
            Self::PolicyDelete { vhost, operator, name } => {
                w.u8(Self::POLICY_DELETE).vhost(*vhost).bool(*operator).short(name.as_bytes());
            }
        }
    }

    /// What follows the tag.
    pub(crate) fn read(tag: u8, r: &mut Reader) -> Result<Self, RecordError> {
        Ok(match tag {
            Self::VHOST_CREATE => Self::VhostCreate(read_vhost(r)?),
            Self::VHOST_DELETE => Self::VhostDelete { vhost: r.vhost()? },
            Self::USER_PUT => {
                let name = r.short()?;
                let algorithm = match r.u8()? {
                    1 => HashAlgorithm::Argon2id,
                    2 => HashAlgorithm::RabbitSha256,
                    3 => HashAlgorithm::RabbitSha512,
                    other => return Err(RecordError::Malformed { what: "hash algorithm", value: other.into() }),
                };
                let password = PasswordHash { algorithm, text: r.text()? };
                Self::UserPut(UserSpec { name, password, tags: read_tags(r)? })
            }
            Self::USER_DELETE => Self::UserDelete { name: r.short()? },
            Self::PERMISSION_PUT => {
                let (user, vhost) = (r.short()?, r.vhost()?);
                let permission = Permission { configure: r.text()?, write: r.text()?, read: r.text()? };
                Self::PermissionPut { user, vhost, permission }
            }
            Self::PERMISSION_DELETE => Self::PermissionDelete { user: r.short()?, vhost: r.vhost()? },
            Self::TOPIC_PERMISSION_PUT => {
                let (user, vhost, exchange) = (r.short()?, r.vhost()?, r.short()?);
                let permission = TopicPermission { write: r.text()?, read: r.text()? };
                Self::TopicPermissionPut { user, vhost, exchange, permission }
            }
            Self::TOPIC_PERMISSION_DELETE => {
                Self::TopicPermissionDelete { user: r.short()?, vhost: r.vhost()?, exchange: r.short()? }
            }
            Self::VHOST_LIMITS => {
                let vhost = r.vhost()?;
                let limits = VhostLimits { max_connections: r.limit()?, max_queues: r.limit()? };
                Self::VhostLimits { vhost, limits }
            }
            Self::USER_LIMITS => {
                let user = r.short()?;
                let limits = UserLimits { max_connections: r.limit()?, max_channels: r.limit()? };
                Self::UserLimits { user, limits }
            }
            Self::POLICY_PUT => {
                let (vhost, operator) = (r.vhost()?, r.bool()?);
                Self::PolicyPut { vhost, operator, policy: read_policy(r)? }
            }
            Self::POLICY_DELETE => {
                let (vhost, operator) = (r.vhost()?, r.bool()?);
                Self::PolicyDelete { vhost, operator, name: r.short()? }
            }
            tag => return Err(RecordError::UnknownTag { tag }),
        })
    }
}

pub(crate) fn write_vhost(w: &mut Writer<'_>, spec: &VhostSpec) {
    w.short(spec.name.as_bytes()).text(&spec.description);
    write_tags(w, &spec.tags);
}

pub(crate) fn read_vhost(r: &mut Reader) -> Result<VhostSpec, RecordError> {
    Ok(VhostSpec { name: r.short()?, description: r.text()?, tags: read_tags(r)? })
}

fn write_policy(w: &mut Writer<'_>, policy: &PolicySpec) {
    let PolicySpec { name, pattern, apply_to, priority, definition } = policy;
    let apply_to = match apply_to {
        ApplyTo::All => 1,
        ApplyTo::Queues => 2,
        ApplyTo::ClassicQueues => 3,
        ApplyTo::QuorumQueues => 4,
        ApplyTo::Streams => 5,
        ApplyTo::Exchanges => 6,
    };
    w.short(name.as_bytes()).text(pattern).u8(apply_to).u64(priority.cast_unsigned()).bytes(definition);
}

fn read_policy(r: &mut Reader) -> Result<PolicySpec, RecordError> {
    let (name, pattern) = (r.short()?, r.text()?);
    let apply_to = match r.u8()? {
        1 => ApplyTo::All,
        2 => ApplyTo::Queues,
        3 => ApplyTo::ClassicQueues,
        4 => ApplyTo::QuorumQueues,
        5 => ApplyTo::Streams,
        6 => ApplyTo::Exchanges,
        other => return Err(RecordError::Malformed { what: "kind that a policy applies to", value: other.into() }),
    };
    Ok(PolicySpec { name, pattern, apply_to, priority: r.u64()?.cast_signed(), definition: r.bytes()? })
}

fn write_tags(w: &mut Writer<'_>, tags: &[ShortStr]) {
    w.list(tags, |w, tag| _ = w.short(tag.as_bytes()));
}

fn read_tags(r: &mut Reader) -> Result<Vec<ShortStr>, RecordError> {
    (0..r.count(1)?).map(|_| r.short()).collect()
}

impl Reader {
    pub(crate) fn vhost(&mut self) -> Result<VhostId, RecordError> {
        self.index().map(VhostId)
    }

    fn text(&mut self) -> Result<String, RecordError> {
        let bytes: Bytes = self.bytes()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(RecordError::Malformed { what: "text at octet", value: error.valid_up_to() as u64 }),
        }
    }

    fn limit(&mut self) -> Result<Option<u64>, RecordError> {
        if self.bool()? { self.u64().map(Some) } else { Ok(None) }
    }
}

impl Writer<'_> {
    pub(crate) fn vhost(&mut self, vhost: VhostId) -> &mut Self {
        self.u64(vhost.0.0)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn limit(&mut self, limit: Option<u64>) -> &mut Self {
        match limit {
            Some(limit) => self.bool(true).u64(limit),
            None => self.bool(false),
        }
    }
}
