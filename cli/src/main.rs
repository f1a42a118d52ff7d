//! `understudy`, the command line. Reads the arguments, hands them to one subcommand, turns its outcome into an exit code.
//! Installed under the name `kubectl-understudy` it is also `kubectl understudy`.

mod admin;
mod arguments;
mod cluster_file;
mod completion;
mod consent;
mod control;
mod demo;
mod dev;
#[cfg(test)]
mod fake_api;
mod kubernetes;
mod logs;
mod orders;
mod perf;
mod report;
mod status;
mod switchover;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match arguments::Arguments::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}: {error:#}", arguments::bin_name());
            ExitCode::FAILURE
        }
    }
}
