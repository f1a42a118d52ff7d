//! `understudy switchover` and `understudy force`: the role goes to the replica that a person names. In a local cluster the
//! brokers are asked directly; in Kubernetes the operator is, by an annotation. Nothing is decided here that the brokers, the
//! operator or the election code would decide.

mod kubernetes;
mod local;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::Serialize;

use crate::arguments::{ForceOptions, SwitchoverOptions};

/// Which cluster, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Kubernetes { namespace: Option<String>, name: String },
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
    let (place, to) = place(options.dir, options.namespace, options.words)?;
    let consent = Consent { given: options.yes };
    let outcome = match (&place, &to, options.force) {
        (_, None, true) => bail!("--force needs the replica's name"),
        (Place::Local(dir), to, false) => local::switchover(dir, to.as_deref()).await?,
        (Place::Local(dir), Some(to), true) => local::force(dir, to, consent).await?,
        (Place::Kubernetes { namespace, name }, to, false) => {
            kubernetes::switchover(namespace.as_deref(), name, to.as_deref()).await?
        }
        (Place::Kubernetes { namespace, name }, Some(to), true) => {
            kubernetes::force(namespace.as_deref(), name, to, consent).await?
        }
    };
    outcome.print(options.json)
}

pub(crate) async fn force(options: ForceOptions) -> anyhow::Result<ExitCode> {
    let (place, to) = place(options.dir, options.namespace, options.words)?;
    let Some(to) = to else { bail!("give the replica's name") };
    let consent = Consent { given: options.yes };
    let outcome = match place {
        Place::Local(dir) => local::force(&dir, &to, consent).await?,
        Place::Kubernetes { namespace, name } => kubernetes::force(namespace.as_deref(), &name, &to, consent).await?,
    };
    outcome.print(options.json)
}

/// With `--dir` the first word is the replica, else the BrokerCluster.
fn place(
    dir: Option<PathBuf>,
    namespace: Option<String>,
    words: Vec<String>,
) -> anyhow::Result<(Place, Option<String>)> {
    let mut words = words.into_iter();
    let place = match dir {
        Some(dir) => Place::Local(dir),
        None => match words.next() {
            Some(name) => Place::Kubernetes { namespace, name },
            None => bail!("give a BrokerCluster's name, or --dir of an `understudy dev`"),
        },
    };
    let to = words.next();
    ensure!(words.next().is_none(), "with --dir there is one name at most, that of the replica");
    Ok((place, to))
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
        ensure!(std::io::stdin().is_terminal(), "nothing was done: say --yes to take the loss");
        eprint!("Go on, and lose it? [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was done");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_a_cluster_or_with_a_directory_the_replica() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let orders = || Place::Kubernetes { namespace: None, name: "orders".into() };
        let dir = || Place::Local("d".into());
        assert_eq!(place(None, None, words(&["orders"])).unwrap(), (orders(), None));
        assert_eq!(place(None, None, words(&["orders", "orders-1"])).unwrap(), (orders(), Some("orders-1".into())));
        assert_eq!(place(Some("d".into()), None, words(&[])).unwrap(), (dir(), None));
        assert_eq!(place(Some("d".into()), None, words(&["dev-1"])).unwrap(), (dir(), Some("dev-1".into())));
        assert!(place(Some("d".into()), None, words(&["dev", "dev-1"])).is_err());
        assert!(place(None, None, words(&[])).is_err());
    }

    #[test]
    fn without_a_terminal_and_without_a_word_nothing_is_lost() {
        assert!(Consent { given: true }.ask("all of it").is_ok());
        // Tests have no terminal, or a person's answer would be asked for.
        if !std::io::stdin().is_terminal() {
            let error = Consent { given: false }.ask("all of it").unwrap_err().to_string();
            assert!(error.contains("--yes"), "{error}");
        }
    }
}
