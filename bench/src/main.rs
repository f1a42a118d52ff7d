//! The command line of the load generator. What it does is in the library.

mod arguments;

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::Parser as _;
use serde::Serialize;
use understudy_bench::compare::{compare, render};
use understudy_bench::limit::{limit, plot, svg, table};
use understudy_bench::storage::backlog::backlog;
use understudy_bench::storage::catch_up::catch_up;
use understudy_bench::storage::old::old;
use understudy_bench::storage::restart::restart;
use understudy_bench::storage::steady::steady;
use understudy_bench::{Target, run_load};

use arguments::{
    BacklogArgs, CatchUpArgs, Cli, Command, CompareArgs, LimitArgs, OldArgs, RestartArgs, RunArgs, SteadyArgs,
};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => runtime(args.threads).and_then(|runtime| runtime.block_on(run(args))),
        Command::Compare(args) => runtime(1).and_then(|runtime| runtime.block_on(compare_clusters(args))),
        Command::Restart(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_restart(args))),
        Command::Backlog(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_backlog(args))),
        Command::Old(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_old(args))),
        Command::Steady(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_steady(args))),
        Command::CatchUp(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_catch_up(args))),
        Command::Limit(args) => runtime(1).and_then(|runtime| runtime.block_on(measure_limit(args))),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// One thread by default: the generator shares the machine with the brokers it measures.
fn runtime(threads: u16) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(usize::from(threads));
    }
    builder.enable_all().build().context("no runtime")
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let target = Target {
        user: args.user.clone(),
        password: args.password.clone(),
        heartbeat_seconds: args.heartbeat,
        ..Target::local(args.addresses.clone())
    };
    let report = run_load(&target, &args.plan()).await.context("the load could not begin")?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    let is_clean = report.unconfirmed == 0 && (args.consumers == 0 || report.account.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn compare_clusters(args: CompareArgs) -> anyhow::Result<ExitCode> {
    let comparison = compare(&args.plan(), |line| eprintln!("{line}")).await?;
    if args.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        print!("{}", render(&comparison));
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure_limit(args: LimitArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    // It blocks on the disk all the time.
    let mut measuring = tokio::task::spawn_blocking(move || limit(&plan, &stopped, |line| eprintln!("{line}")));
    let measured = tokio::select! {
        measured = &mut measuring => measured,
        _ = tokio::signal::ctrl_c() => {
            stop.store(true, Ordering::Relaxed);
            measuring.await
        }
    };
    let measured = measured.context("the measuring thread ended")??;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&measured)).with_context(|| format!("{} not written", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&measured)?);
    } else {
        print!("{}\n{}", table(&measured), plot(&measured));
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure_restart(args: RestartArgs) -> anyhow::Result<ExitCode> {
    let report = restart(&args.plan(), |line| eprintln!("{line}")).await?;
    print_report(&report, args.ours.json)?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure_backlog(args: BacklogArgs) -> anyhow::Result<ExitCode> {
    let report = backlog(&args.plan(), |line| eprintln!("{line}")).await?;
    print_report(&report, args.ours.json)?;
    let is_good = report.is_within_bound() && report.account.is_clean();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure_catch_up(args: CatchUpArgs) -> anyhow::Result<ExitCode> {
    let report = catch_up(&args.plan(), |line| eprintln!("{line}")).await?;
    print_report(&report, args.ours.json)?;
    let is_good = report.is_good() && report.account.is_clean();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure_old(args: OldArgs) -> anyhow::Result<ExitCode> {
    let report = old(&args.plan(), |line| eprintln!("{line}")).await?;
    print_report(&report, args.ours.json)?;
    let is_good = report.is_within_bound() && report.old_message_is_there && report.account.is_clean();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure_steady(args: SteadyArgs) -> anyhow::Result<ExitCode> {
    let report = steady(&args.plan(), |line| eprintln!("{line}")).await?;
    print_report(&report, args.ours.json)?;
    Ok(ExitCode::SUCCESS)
}

fn print_report(report: &(impl Display + Serialize), as_json: bool) -> anyhow::Result<()> {
    if as_json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
