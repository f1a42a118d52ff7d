//! `understudy switchover` and `understudy force`: the role goes to the replica that a person names. In a local cluster the
//! brokers are asked directly; in Kubernetes the operator is, by an annotation. Nothing is decided here that the brokers, the
//! operator or the election code would decide.

mod kubernetes;
mod local;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::Serialize;

use crate::arguments::{ForceOptions, ReachOptions, SwitchoverOptions};
use crate::consent;
use crate::kubernetes::Kubernetes;

/// Which cluster, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Kubernetes { reach: ReachOptions, name: Option<String> },
}

/// Who is primary now, and what it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    primary: String,
    epoch: Option<u64>,
    /// False: it was the primary already, or somebody else has moved the role meanwhile.
    moved: bool,
    /// From the request until the new primary confirms, if this was its doing.
    gap_ms: Option<u64>,
    message: String,
}

/// Whether a person has agreed to lose what may be lost.
#[derive(Clone, Copy, Debug)]
struct Consent {
    given: bool,
}

pub(crate) async fn switchover(options: SwitchoverOptions) -> anyhow::Result<ExitCode> {
    let (place, to) = place(options.dir, options.reach, options.words, options.to)?;
    let consent = Consent { given: options.yes };
    let outcome = match (&place, &to, options.force) {
        (_, None, true) => bail!("--force needs the replica's name"),
        (Place::Local(dir), to, false) => local::switchover(dir, to.as_deref()).await?,
        (Place::Local(dir), Some(to), true) => local::force(dir, to, consent).await?,
        (Place::Kubernetes { reach, name }, to, false) => {
            kubernetes::switchover(&Kubernetes::reach(reach).await?, name.as_deref(), to.as_deref()).await?
        }
        (Place::Kubernetes { reach, name }, Some(to), true) => {
            kubernetes::force(&Kubernetes::reach(reach).await?, name.as_deref(), to, consent).await?
        }
    };
    outcome.print(options.json)
}

pub(crate) async fn force(options: ForceOptions) -> anyhow::Result<ExitCode> {
    let (place, to) = place(options.dir, options.reach, options.words, None)?;
    let Some(to) = to else { bail!("give the replica's name") };
    let consent = Consent { given: options.yes };
    let outcome = match place {
        Place::Local(dir) => local::force(&dir, &to, consent).await?,
        Place::Kubernetes { reach, name } => {
            kubernetes::force(&Kubernetes::reach(&reach).await?, name.as_deref(), &to, consent).await?
        }
    };
    outcome.print(options.json)
}

/// With `--dir` the first word is the replica, else the BrokerCluster; `to` may be an option instead.
fn place(
    dir: Option<PathBuf>,
    reach: ReachOptions,
    words: Vec<String>,
    to: Option<String>,
) -> anyhow::Result<(Place, Option<String>)> {
    let mut words = words.into_iter();
    let place = match dir {
        Some(dir) => Place::Local(dir),
        None => Place::Kubernetes { reach, name: words.next() },
    };
    let word = words.next();
    ensure!(words.next().is_none(), "with --dir there is one name at most, that of the replica");
    ensure!(word.is_none() || to.is_none(), "the replica is named twice: as a word, and with --to");
    Ok((place, word.or(to)))
}

impl Outcome {
    fn print(&self, json: bool) -> anyhow::Result<ExitCode> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
        } else {
            println!("{}", self.message);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn already(primary: &str, epoch: Option<u64>) -> Self {
        let of_epoch = of_epoch(epoch);
        let message = format!("{primary} is the primary{of_epoch} already");
        Self { primary: primary.into(), epoch, moved: false, gap_ms: None, message }
    }

    fn moved(primary: &str, epoch: u64, from: &str, gap: Duration) -> Self {
        let gap_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
        let message = format!(
            "{primary} is the primary of epoch {epoch}; it took over from {from}, and publishers waited for {gap_ms} ms at most"
        );
        Self { primary: primary.into(), epoch: Some(epoch), moved: true, gap_ms: Some(gap_ms), message }
    }

    /// How long publishers have waited nobody knows: since before it was asked for.
    fn forced(primary: &str, epoch: u64) -> Self {
        let message = format!("{primary} is the primary of epoch {epoch}, by force");
        Self { primary: primary.into(), epoch: Some(epoch), moved: true, gap_ms: None, message }
    }
}

fn of_epoch(epoch: Option<u64>) -> String {
    epoch.map_or_else(String::new, |epoch| format!(" of epoch {epoch}"))
}

impl Consent {
    /// Says what may be lost, and asks whoever sits there unless it was said beforehand.
    fn ask(self, what_may_be_lost: &str) -> anyhow::Result<()> {
        eprintln!("{what_may_be_lost}");
        if self.given {
            return Ok(());
        }
        consent::ask("Go on, and lose it?", "nothing was done: say --yes to take the loss")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_a_cluster_or_with_a_directory_the_replica() {
        let place = |dir: Option<&str>, to: Option<&str>, words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            place(dir.map(Into::into), ReachOptions::default(), words, to.map(str::to_owned))
        };
        let named =
            |name: Option<&str>| Place::Kubernetes { reach: ReachOptions::default(), name: name.map(str::to_owned) };
        let (orders, heir) = (|| named(Some("orders")), || Some("orders-1".to_owned()));
        let dir = || Place::Local("d".into());
        assert_eq!(place(None, None, &["orders"]).unwrap(), (orders(), None));
        assert_eq!(place(None, None, &["orders", "orders-1"]).unwrap(), (orders(), heir()));
        assert_eq!(place(None, Some("orders-1"), &["orders"]).unwrap(), (orders(), heir()));
        assert_eq!(place(None, Some("orders-1"), &[]).unwrap(), (named(None), heir()));
        assert_eq!(place(None, None, &[]).unwrap(), (named(None), None));
        assert_eq!(place(Some("d"), None, &[]).unwrap(), (dir(), None));
        assert_eq!(place(Some("d"), None, &["dev-1"]).unwrap(), (dir(), Some("dev-1".into())));
        assert!(place(Some("d"), None, &["dev", "dev-1"]).is_err());
        assert!(place(None, Some("orders-1"), &["orders", "orders-1"]).is_err());
    }

    #[test]
    fn without_a_terminal_and_without_a_word_nothing_is_lost() {
        assert!(Consent { given: true }.ask("all of it").is_ok());
        // Tests have no terminal, or a person's answer would be asked for.
        if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            let error = Consent { given: false }.ask("all of it").unwrap_err().to_string();
            assert!(error.contains("--yes"), "{error}");
        }
    }
}
