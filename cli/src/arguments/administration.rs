//! What may be said of virtual hosts, users, permissions, limits, policies and definitions.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ReachOptions;

/// Which cluster.
#[derive(Debug, Args)]
pub(crate) struct PlaceOptions {
    /// A BrokerCluster's name
    #[arg(long, short, value_name = "NAME", required_unless_present = "dir", conflicts_with = "dir")]
    pub(crate) cluster: Option<String>,
    /// A directory of `understudy dev` instead of a cluster in Kubernetes
    #[arg(long, value_name = "DIR", conflicts_with = "ReachOptions")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reach: ReachOptions,
}

#[derive(Debug, Args)]
pub(crate) struct VhostOptions {
    #[command(subcommand)]
    pub(crate) command: VhostCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VhostCommand {
    /// Make one, with the exchanges that each has; nothing happens if it is there
    Add {
        name: String,
        /// For people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// May be given several times
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Delete one, with its queues and their messages, its exchanges and bindings; its connections are closed
    Delete {
        name: String,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UserOptions {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Make one; it may do nothing before a permission says what
    Add {
        name: String,
        /// Without it: a line of standard input
        password: Option<String>,
        /// Such as administrator; may be given several times
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Delete one; its connections are closed
    Delete {
        name: String,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Give one another password; who is logged in stays
    Password {
        name: String,
        /// Without it: a line of standard input
        password: Option<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Give one these tags, and no other
    Tags {
        name: String,
        tags: Vec<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them; those of the brokers' file of users are not among them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PermissionOptions {
    #[command(subcommand)]
    pub(crate) command: PermissionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PermissionCommand {
    /// Let a user do in a virtual host what these patterns match, and nothing else; it holds at once
    Set {
        user: String,
        /// Of names that it may configure, write to and read from; with --topic of routing keys that it may write and read
        #[arg(value_name = "PATTERN", required = true)]
        patterns: Vec<String>,
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        /// Of an exchange of type topic; {username} and {vhost} stand for the names
        #[arg(long, value_name = "EXCHANGE")]
        topic: Option<String>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Take a user out of a virtual host; with --topic or --all-topics free its routing keys
    Clear {
        user: String,
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        #[arg(long, value_name = "EXCHANGE")]
        topic: Option<String>,
        /// Of all exchanges
        #[arg(long, conflicts_with = "topic")]
        all_topics: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// Of this user only
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// In this virtual host only
        #[arg(long, value_name = "VHOST")]
        vhost: Option<String>,
        /// Those on routing keys instead
        #[arg(long)]
        topics: bool,
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LimitOptions {
    #[command(subcommand)]
    pub(crate) command: LimitCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Set one; what is beyond it already stays
    Set {
        name: LimitName,
        value: u64,
        #[command(flatten)]
        of: LimitOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Lift one
    Clear {
        name: LimitName,
        #[command(flatten)]
        of: LimitOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them
    List {
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LimitName {
    /// Of a virtual host or a user
    #[value(name = "max-connections")]
    Connections,
    /// Of a virtual host
    #[value(name = "max-queues")]
    Queues,
    /// Of a user
    #[value(name = "max-channels")]
    Channels,
}

impl std::fmt::Display for LimitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connections => "max-connections",
            Self::Queues => "max-queues",
            Self::Channels => "max-channels",
        })
    }
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LimitOf {
    #[arg(long, value_name = "VHOST")]
    pub(crate) vhost: Option<String>,
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

impl LimitOf {
    pub(crate) fn describe(&self) -> String {
        match (&self.vhost, &self.user) {
            (Some(vhost), _) => format!("virtual host '{vhost}'"),
            (None, user) => format!("user '{}'", user.as_deref().unwrap_or_default()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PolicyOptions {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Make one, or another one of its name; it holds at once, for what is there too
    Set {
        name: String,
        /// A regular expression on names
        pattern: String,
        /// JSON, such as {"max-length": 1000, "dead-letter-exchange": "dead"}
        definition: String,
        /// Of those that match a name only that with the highest counts
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
        priority: i64,
        /// queues, classic_queues, quorum_queues, exchanges or all
        #[arg(long, value_name = "WHAT", default_value = "all")]
        apply_to: String,
        #[command(flatten)]
        of: PolicyOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Take one away; what it set holds no more
    Clear {
        name: String,
        #[command(flatten)]
        of: PolicyOf,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Show them, the first to count first
    List {
        /// In this virtual host only
        #[arg(long, value_name = "VHOST")]
        vhost: Option<String>,
        /// Those of operators instead
        #[arg(long)]
        operator: bool,
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PolicyOf {
    #[arg(long, value_name = "VHOST", default_value = "/")]
    pub(crate) vhost: String,
    /// One of operators, which bounds what the others may set
    #[arg(long)]
    pub(crate) operator: bool,
}

impl PolicyOf {
    pub(crate) fn describe(&self, name: &str) -> String {
        let kind = if self.operator { "operator policy" } else { "policy" };
        format!("{kind} '{name}' in virtual host '{}'", self.vhost)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DefinitionsOptions {
    #[command(subcommand)]
    pub(crate) command: DefinitionsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DefinitionsCommand {
    /// Write them down
    Export {
        /// Without it: standard output
        file: Option<PathBuf>,
        #[command(flatten)]
        place: PlaceOptions,
    },
    /// Make what stands there, and say what differs and what is not taken; a second time changes nothing
    Import {
        file: PathBuf,
        /// Of entries that do not say, in a file of one virtual host
        #[arg(long, value_name = "VHOST", default_value = "/")]
        vhost: String,
        /// The report as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PlaceOptions,
    },
}
