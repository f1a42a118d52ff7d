//! `understudy vhost`, `user`, `permission`, `limit`, `policy` and `definitions`: what administrators change and look at. Every change
//! is the primary's to make; here words become changes, and what it has becomes tables or JSON.

mod changes;
mod lists;
mod reach;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use understudy_proto::{AdminChange, AdminOutcome, admin_change::Change, admin_outcome::Kind};

use crate::arguments::{
    DefinitionsCommand, DefinitionsOptions, LimitCommand, LimitOptions, PermissionCommand, PermissionOptions,
    PlaceOptions, PolicyCommand, PolicyOptions, UserCommand, UserOptions, VhostCommand, VhostOptions,
};
use reach::Place;

/// A file of definitions of ten thousand queues has a few MiB.
const MAX_FILE_BYTES: u64 = 1 << 30;

pub(crate) async fn vhost(options: VhostOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        VhostCommand::Add { name, description, tags, place } => {
            let what = format!("virtual host '{name}'");
            let change = changes::add_vhost(name, description.unwrap_or_default(), tags);
            carry_out(place, change, &format!("{what} is added"), &format!("{what} was there already")).await
        }
        VhostCommand::Delete { name, place } => {
            let done = format!("virtual host '{name}' is deleted, with all that was in it");
            carry_out(place, Change::DeleteVhost(name), &done, &done).await
        }
        VhostCommand::List { json, place } => {
            let definitions = place.place()?.definitions(false).await?;
            lists::print(json, &lists::vhosts(&definitions))
        }
    }
}

pub(crate) async fn user(options: UserOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        UserCommand::Add { name, password, tags, place } => {
            let done = format!(
                "user '{name}' is added; it may do nothing before `understudy permission set` says what, in a virtual host"
            );
            let user = changes::user(name, &given_password(password)?, tags)?;
            carry_out(place, Change::AddUser(user), &done, &done).await
        }
        UserCommand::Delete { name, place } => {
            let done = format!("user '{name}' is deleted, and its connections are closed");
            carry_out(place, Change::DeleteUser(name), &done, &done).await
        }
        UserCommand::Password { name, password, place } => {
            let done = format!("user '{name}' has another password; who is logged in stays");
            let user = changes::user(name, &given_password(password)?, Vec::new())?;
            carry_out(place, Change::SetPassword(user), &done, &done).await
        }
        UserCommand::Tags { name, tags, place } => {
            let done = format!("user '{name}' has the tags [{}]", tags.join(", "));
            carry_out(place, changes::set_tags(name, tags), &done, &done).await
        }
        UserCommand::List { json, place } => {
            let definitions = place.place()?.definitions(false).await?;
            lists::print(json, &lists::users(&definitions))
        }
    }
}

pub(crate) async fn permission(options: PermissionOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        PermissionCommand::Set { user, patterns, vhost, topic, place } => {
            let done = format!("what user '{user}' may do in virtual host '{vhost}' is set");
            let change = changes::set_permission(user, vhost, topic, patterns)?;
            carry_out(place, change, &done, "it was so already").await
        }
        PermissionCommand::Clear { user, vhost, topic, all_topics, place } => {
            let done = format!("that of user '{user}' in virtual host '{vhost}' is cleared");
            let topic = if all_topics { Some(String::new()) } else { topic };
            carry_out(place, changes::clear_permission(user, vhost, topic), &done, "there was none").await
        }
        PermissionCommand::List { user, vhost, topics, json, place } => {
            let definitions = place.place()?.definitions(false).await?;
            lists::print(json, &lists::permissions(&definitions, user.as_deref(), vhost.as_deref(), topics))
        }
    }
}

pub(crate) async fn limit(options: LimitOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        LimitCommand::Set { name, value, of, place } => {
            let done = format!("{name} of {} is {value}", of.describe());
            carry_out(place, changes::set_limit(&of, name, Some(value)), &done, &done).await
        }
        LimitCommand::Clear { name, of, place } => {
            let done = format!("{name} of {} is no limit any more", of.describe());
            carry_out(place, changes::set_limit(&of, name, None), &done, "there was none").await
        }
        LimitCommand::List { json, place } => {
            let definitions = place.place()?.definitions(false).await?;
            lists::print(json, &lists::limits(&definitions))
        }
    }
}

pub(crate) async fn policy(options: PolicyOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        PolicyCommand::Set { name, pattern, definition, priority, apply_to, of, place } => {
            let what = of.describe(&name);
            let change = changes::set_policy(of, name, pattern, &definition, priority, apply_to)?;
            carry_out(place, change, &format!("{what} is set"), &format!("{what} was so already")).await
        }
        PolicyCommand::Clear { name, of, place } => {
            let done = format!("{} is cleared", of.describe(&name));
            carry_out(place, changes::clear_policy(of, name), &done, &done).await
        }
        PolicyCommand::List { vhost, operator, json, place } => {
            let definitions = place.place()?.definitions(false).await?;
            lists::print(json, &lists::policies(&definitions, vhost.as_deref(), operator))
        }
    }
}

pub(crate) async fn definitions(options: DefinitionsOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        DefinitionsCommand::Export { file, place } => {
            let definitions = place.place()?.definitions(true).await?;
            let text = serde_json::to_string_pretty(&understudy_definitions::export(definitions))?;
            match file {
                Some(file) => {
                    std::fs::write(&file, text + "\n")
                        .with_context(|| format!("{} cannot be written", file.display()))?;
                }
                None => println!("{text}"),
            }
            Ok(ExitCode::SUCCESS)
        }
        DefinitionsCommand::Import { file, vhost, json, place } => {
            let text = read_file(&file)?;
            let place = place.place()?;
            let has_open_guest = place.definitions(false).await?.open_guest;
            let plan = understudy_definitions::plan(&text, &vhost, has_open_guest);
            let plan = plan.with_context(|| format!("{} is no file of definitions", file.display()))?;
            let outcomes = place.administer(&plan.changes()).await?;
            let report = plan.report(outcomes);
            if json {
                println!("{}", serde_json::to_string_pretty(&report)?);
            } else {
                print!("{report}");
            }
            Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn read_file(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    let unreadable = || format!("{} cannot be read", file.display());
    let mut text = Vec::new();
    let opened = std::fs::File::open(file).with_context(unreadable)?;
    opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).with_context(unreadable)?;
    ensure!(text.len() as u64 <= MAX_FILE_BYTES, "{} is larger than 1 GiB", file.display());
    Ok(text)
}

/// One change; what is said when it is made, and when it was so already.
async fn carry_out(place: PlaceOptions, change: Change, done: &str, unchanged: &str) -> anyhow::Result<ExitCode> {
    let outcomes = place.place()?.administer(&[AdminChange { change: Some(change) }]).await?;
    let AdminOutcome { kind, why } = outcomes.into_iter().next().context("the broker did not say what became of it")?;
    match Kind::try_from(kind) {
        Ok(Kind::Changed) => println!("{done}"),
        Ok(Kind::Unchanged) => println!("{unchanged}"),
        _ => bail!("{why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// As an argument, or a line of standard input.
fn given_password(argument: Option<String>) -> anyhow::Result<String> {
    let password = match argument {
        Some(password) => password,
        None => {
            if std::io::stdin().is_terminal() {
                eprintln!("Password (it is shown as you type):");
            }
            let mut line = String::new();
            std::io::stdin().read_line(&mut line)?;
            line.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    ensure!(!password.is_empty(), "a password is needed, as an argument or on standard input");
    Ok(password)
}

impl PlaceOptions {
    fn place(self) -> anyhow::Result<Place> {
        match (self.dir, self.cluster) {
            (Some(dir), None) => Ok(Place::Local(dir)),
            (None, Some(name)) => Ok(Place::Kubernetes { reach: self.reach, name }),
            _ => bail!("say which cluster: --dir of an `understudy dev`, or --cluster with a BrokerCluster's name"),
        }
    }
}
