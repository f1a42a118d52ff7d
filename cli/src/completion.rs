//! What shells are told of the commands: a script for each (`completion`), and, for kubectl, which asks plugins themselves,
//! the words that may come next. Names of clusters and pods are not looked up.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// What kubectl reads after the candidates: they are all there are, do not offer files.
const NO_FILES: &str = ":4";

pub(crate) fn script(mut command: Command, shell: Shell) -> anyhow::Result<ExitCode> {
    clap_complete::generate(shell, &mut command, "understudy", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn candidates(command: Command, words: &[String]) -> anyhow::Result<ExitCode> {
    for candidate in next(command, words) {
        println!("{candidate}");
    }
    println!("{NO_FILES}");
    Ok(ExitCode::SUCCESS)
}

/// The last word is the one that is being typed, perhaps empty.
fn next(mut command: Command, words: &[String]) -> Vec<String> {
    command.build();
    let (typed, before) = words.split_last().map_or(("", [].as_slice()), |(last, rest)| (last.as_str(), rest));
    let mut at = &command;
    for word in before {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let about = |name: &str, help: Option<String>| match help {
        Some(help) => format!("{name}\t{}", help.lines().next().unwrap_or_default()),
        None => name.to_owned(),
    };
    let commands = at
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| about(command.get_name(), command.get_about().map(ToString::to_string)));
    let options = at.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(|argument| {
        Some(about(&format!("--{}", argument.get_long()?), argument.get_help().map(ToString::to_string)))
    });
    let all: Vec<String> = if typed.starts_with('-') { options.collect() } else { commands.collect() };
    all.into_iter().filter(|candidate| candidate.starts_with(typed)).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    fn after(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let names = next(Arguments::command(), &words).into_iter();
        names.map(|candidate| candidate.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn commands_and_options_that_begin_so() {
        assert_eq!(after("sw"), ["switchover"]);
        assert_eq!(after("maintenance o"), ["on", "off"]);
        assert_eq!(after("status orders --fail"), ["--failovers"]);
        assert!(after("").contains(&"report".to_owned()) && !after("").contains(&"__complete".to_owned()));
        assert!(after("logs --").contains(&"--role".to_owned()));
        assert!(after("nothing-like-this --nor-this").is_empty());
    }

    #[test]
    fn a_script_for_each_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "understudy", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("switchover") && script.contains("failovers"), "{shell}");
        }
    }
}
