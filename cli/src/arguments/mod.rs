//! What may be typed: the subcommands and their options, and which module each belongs to. Options are only read here;
//! what they must satisfy is checked where they become a configuration (`dev::Config`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod administration;
mod kubernetes;
mod local;

pub(crate) use administration::*;
pub(crate) use kubernetes::*;
pub(crate) use local::*;

#[derive(Debug, Parser)]
#[command(name = "understudy", bin_name = bin_name(), version, about = "Understudy: a hot-standby AMQP broker")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cluster of broker processes on this machine, on loopback, user and password guest
    Dev(DevOptions),
    /// Show who is primary, who is in sync and how far each replica is
    Status(StatusOptions),
    /// Hand the primary's role to another replica, in good order: one disconnect for each client, nothing lost
    Switchover(SwitchoverOptions),
    /// Make a replica primary that may lack confirmed messages: the last resort, when no other is left
    Force(ForceOptions),
    /// Keep pods from being primary or in the in-sync set, as for a look at their disks
    Fence(FenceOptions),
    /// Let fenced pods take part again
    Unfence(UnfenceOptions),
    /// End all pods of a cluster and keep its volumes
    Hibernate(HibernateOptions),
    /// Start the pods of a hibernated cluster again
    Wake(NamedOrderOptions),
    /// While nodes are worked at: roll nothing out
    Maintenance(MaintenanceOptions),
    /// Have the operator change none of a cluster's objects; it goes on electing primaries
    Pause(NamedOrderOptions),
    /// Have it change them again
    Resume(NamedOrderOptions),
    /// The brokers' logs; of the primary, whoever that is
    Logs(LogsOptions),
    /// Everything that helps to find a fault, in one archive, without secrets
    Report(ReportOptions),
    /// Run the load generator in the cluster's namespace, against its Service
    Perf(PerfOptions),
    /// Virtual hosts
    Vhost(VhostOptions),
    /// Users, and their passwords and tags
    User(UserOptions),
    /// What users may do where
    Permission(PermissionOptions),
    /// Limits of virtual hosts and of users
    Limit(LimitOptions),
    /// What queues and exchanges get by their names: limits, times to live, where dead letters go
    Policy(PolicyOptions),
    /// Everything of that, and exchanges, queues and bindings, in the format of RabbitMQ's definitions
    Definitions(DefinitionsOptions),
    /// Kill the primary again and again under load, or with --chaos stop and kill any broker, and count what was lost
    Demo(DemoOptions),
    /// A script that teaches a shell these commands
    Completion(CompletionOptions),
    /// What may come next, as kubectl asks plugins
    #[command(hide = true, name = "__complete")]
    Complete(CompleteOptions),
}

impl Arguments {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .init();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match self.command {
            Command::Dev(options) => runtime.block_on(crate::dev::run(options)),
            Command::Status(options) => runtime.block_on(crate::status::run(options)),
            Command::Switchover(options) => runtime.block_on(crate::switchover::switchover(options)),
            Command::Force(options) => runtime.block_on(crate::switchover::force(options)),
            Command::Vhost(options) => runtime.block_on(crate::admin::vhost(options)),
            Command::User(options) => runtime.block_on(crate::admin::user(options)),
            Command::Permission(options) => runtime.block_on(crate::admin::permission(options)),
            Command::Limit(options) => runtime.block_on(crate::admin::limit(options)),
            Command::Policy(options) => runtime.block_on(crate::admin::policy(options)),
            Command::Definitions(options) => runtime.block_on(crate::admin::definitions(options)),
            Command::Demo(options) => runtime.block_on(crate::demo::run(options)),
            Command::Fence(options) => runtime.block_on(crate::orders::fence(options)),
            Command::Unfence(options) => runtime.block_on(crate::orders::unfence(options)),
            Command::Hibernate(options) => runtime.block_on(crate::orders::hibernate(options)),
            Command::Wake(options) => runtime.block_on(crate::orders::wake(options)),
            Command::Maintenance(options) => runtime.block_on(crate::orders::maintenance(options)),
            Command::Pause(options) => runtime.block_on(crate::orders::pause(options)),
            Command::Resume(options) => runtime.block_on(crate::orders::resume(options)),
            Command::Logs(options) => runtime.block_on(crate::logs::run(options)),
            Command::Report(options) => runtime.block_on(crate::report::run(options)),
            Command::Perf(options) => runtime.block_on(crate::perf::run(options)),
            Command::Completion(options) => crate::completion::script(Self::command(), options.shell),
            Command::Complete(options) => crate::completion::candidates(Self::command(), &options.words),
        }
    }
}

/// kubectl runs plugins under their file's name: then usage lines say `kubectl understudy`.
pub(crate) fn bin_name() -> &'static str {
    let called_as = std::env::args_os().next().map(PathBuf::from);
    match called_as.as_deref().and_then(|path| path.file_stem()) {
        Some(stem) if stem == "kubectl-understudy" => "kubectl understudy",
        _ => "understudy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn status_takes_a_name_or_a_directory_and_not_both() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy status").is_ok(), "the only one of the namespace");
        assert!(parse("understudy status orders --dir x").is_err());
        assert!(parse("understudy status --dir x -n shop").is_err());
        assert!(parse("understudy status --dir x --context y").is_err());
        assert!(parse("understudy status -o json --watch").is_err());
        assert!(parse("understudy status orders -o json --context y --kubeconfig z").is_ok());
        assert!(parse("understudy status -n shop orders").is_ok());
        assert!(parse("understudy status --dir x --json").is_ok());
    }

    #[test]
    fn administration_wants_to_know_where_and_limits_of_what() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy vhost add shop").is_err());
        assert!(parse("understudy vhost add shop --dir x --cluster y").is_err());
        assert!(parse("understudy vhost add shop --dir x --description A --tag a --tag b").is_ok());
        assert!(parse("understudy user tags anna administrator monitoring -c orders -n shop").is_ok());
        assert!(parse("understudy permission set anna ^a .* .* --vhost shop --dir x").is_ok());
        assert!(parse("understudy permission set anna ^a .* --topic amq.topic --dir x").is_ok());
        assert!(parse("understudy permission set anna --dir x").is_err());
        assert!(parse("understudy limit set max-queues 3 --vhost shop --dir x").is_ok());
        assert!(parse("understudy limit set max-queues 3 --vhost shop --user anna --dir x").is_err());
        assert!(parse("understudy limit set max-queues 3 --dir x").is_err());
        assert!(parse("understudy definitions import file --dir x").is_ok());
        assert!(parse("understudy policy set p ^a {} --dir x").is_ok());
        assert!(parse("understudy policy set p ^a {} --priority -1 --apply-to queues --operator --dir x").is_ok());
        assert!(parse("understudy policy set p ^a --dir x").is_err());
        assert!(parse("understudy policy clear p --operator --vhost shop -c orders").is_ok());
    }

    #[test]
    fn chaos_has_its_own_measure_and_pace() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        let demo = |line: &str| match parse(line).unwrap().command {
            Command::Demo(options) => options,
            other => panic!("{other:?}"),
        };
        assert!(parse("understudy demo --minutes 1").is_err());
        assert!(parse("understudy demo --chaos --kills 3").is_err());
        assert_eq!(demo("understudy demo").rate, 2000);
        assert_eq!(demo("understudy demo --chaos --minutes 0.5").rate, 10_000);
        assert_eq!(demo("understudy demo --chaos --rate 7").rate, 7);
    }

    #[test]
    fn a_switchover_takes_a_loss_only_where_it_is_forced() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("understudy switchover --dir x dev-1").is_ok());
        assert!(parse("understudy switchover -n shop orders orders-1").is_ok());
        assert!(parse("understudy switchover orders orders-1 orders-2").is_err());
        assert!(parse("understudy switchover --dir x dev-1 --yes").is_err());
        assert!(parse("understudy switchover --dir x dev-1 --force --yes").is_ok());
        assert!(parse("understudy force --dir x").is_err());
        assert!(parse("understudy force --dir x dev-1 --yes").is_ok());
    }
}
