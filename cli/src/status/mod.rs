//! `understudy status`: one look at a cluster, local or in Kubernetes, as tables or as one JSON document. It reads and shows;
//! what it shows is what brokers and operator say, not what it concludes.

mod kubernetes;
mod local;
mod summary;
mod watch;

use std::process::ExitCode;

use crate::arguments::StatusOptions;
pub(crate) use kubernetes::broker_clusters;
pub(crate) use local::ask_all;
use summary::Summary;
pub(crate) use summary::columns;

pub(crate) async fn run(options: StatusOptions) -> anyhow::Result<ExitCode> {
    if options.watch {
        look(&options).await?; // what can never be seen is an error, not a picture
        watch::watch(async || look(&options).await).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let summary = look(&options).await?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", summary.to_text());
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(options: &StatusOptions) -> anyhow::Result<Summary> {
    match (&options.dir, &options.name) {
        (Some(dir), _) => local::summary(dir).await,
        (None, Some(name)) => kubernetes::summary(options.namespace.as_deref(), name).await,
        (None, None) => anyhow::bail!("give a BrokerCluster's name, or --dir of an `understudy dev`"),
    }
}
