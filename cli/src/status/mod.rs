//! `understudy status`: one look at a cluster, local or in Kubernetes, as tables or as one JSON document. It reads and shows;
//! what it shows is what brokers and operator say, not what it concludes.

mod kubernetes;
mod local;
mod summary;
mod tree;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;

use crate::arguments::StatusOptions;
use crate::kubernetes::Kubernetes;
pub(crate) use kubernetes::summarize;
pub(crate) use local::ask_all;
pub(crate) use summary::columns;
pub(crate) use tree::View;

pub(crate) async fn run(options: StatusOptions) -> anyhow::Result<ExitCode> {
    let way = match &options.dir {
        Some(_) => None,
        None => Some(Kubernetes::reach(&options.reach).await?),
    };
    let look = async || match (&options.dir, &way) {
        (Some(dir), _) => local::summary(dir).await,
        (None, Some(kubernetes)) => kubernetes::summary(kubernetes, options.name.as_deref()).await,
        (None, None) => anyhow::bail!("give a BrokerCluster's name, or --dir of an `understudy dev`"),
    };
    let view = || View { now: time::OffsetDateTime::now_utc(), colour: wants_colour(), failovers: options.failovers };
    let summary = look().await?; // also before a watch: what can never be seen is an error, not a picture
    if options.watch {
        watch::watch(look, view).await?;
    } else if options.as_json() {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", summary.to_text(&view()));
    }
    Ok(ExitCode::SUCCESS)
}

/// On a terminal, unless the person has said otherwise (no-color.org).
fn wants_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
