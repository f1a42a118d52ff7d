//! `understudy-broker`: one replica, or with the word `inspect` first a look at one's data directory. What it does is in the
//! library; this reads the command line and starts it.

use std::process::ExitCode;

use clap::Parser;
use understudy_broker::{Arguments, Config, INSPECT, run, run_inspect};

// A broker keeps its rules.
const _: () = assert!(!understudy_record::variant::IS_COMPILED_IN, "the feature `variants` is for simulations alone");

/// Bodies are allocated on clients' threads and freed on the core thread. The C library's allocator keeps what is freed that
/// way, so that a memory alarm would not end when the backlog is gone; this one gives it back within seconds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Not a subcommand: in a pod the environment sets the broker's own arguments, which would come in its way.
    let arguments = std::env::args_os().skip(1);
    if std::env::args_os().nth(1).is_some_and(|word| word == INSPECT) {
        return run_inspect(arguments);
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=warn,tower=warn,h2=warn")),
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let outcome = Config::try_from(Arguments::parse()).map_err(anyhow::Error::from).and_then(run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
