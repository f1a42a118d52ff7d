//! `understudy status`: one look at a cluster, local or in Kubernetes, as tables or as one JSON document. It reads and shows;
//! what it shows is what brokers and operator say, not what it concludes.

mod kubernetes;
mod local;
mod summary;

use std::process::ExitCode;

use crate::arguments::StatusOptions;
pub(crate) use summary::columns;

pub(crate) async fn run(options: StatusOptions) -> anyhow::Result<ExitCode> {
    let summary = match (&options.dir, &options.name) {
        (Some(dir), _) => local::summary(dir).await?,
        (None, Some(name)) => kubernetes::summary(options.namespace.as_deref(), name).await?,
        (None, None) => anyhow::bail!("give a BrokerCluster's name, or --dir of an `understudy dev`"),
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", summary.to_text());
    }
    Ok(ExitCode::SUCCESS)
}
