//! What the demonstration sees of its cluster: the events, folded into who is primary and who is in sync, and waiting for
//! these to become something, each time with a deadline and a word of what is waited for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::sync::mpsc;
use understudy_record::Epoch;

use crate::dev::Event;

pub(crate) struct Scene {
    events: mpsc::Receiver<Event>,
    began: Instant,
    /// Progress goes to standard error then.
    json: bool,
    picture: Picture,
}

#[derive(Default)]
struct Picture {
    ready: bool,
    primary: Option<Election>,
    in_sync: BTreeSet<String>,
    in_sync_epoch: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Election {
    pub(crate) name: String,
    pub(crate) epoch: Epoch,
    /// From the notice of the death to the swapped Lease, if the supervisor did it.
    pub(crate) elected: Option<Duration>,
}

impl Scene {
    pub(crate) fn new(events: mpsc::Receiver<Event>, json: bool) -> Self {
        Self { events, began: Instant::now(), json, picture: Picture::default() }
    }

    pub(crate) fn say(&self, text: &str) {
        let line = format!("{:7.2} s  {text}", self.began.elapsed().as_secs_f64());
        if self.json { eprintln!("{line}") } else { println!("{line}") }
    }

    /// Who is primary, as far as the events tell.
    pub(crate) fn primary(&mut self) -> Option<(String, Epoch)> {
        self.catch_up();
        self.picture.primary.as_ref().map(|election| (election.name.clone(), election.epoch))
    }

    /// Whether the set of the present epoch holds all, as far as the events tell.
    pub(crate) fn all_in_sync(&mut self, count: usize) -> bool {
        self.catch_up();
        self.picture.all_in_sync(count)
    }

    pub(crate) async fn await_ready(&mut self, within: Duration) -> anyhow::Result<()> {
        self.until("the cluster to be ready", within, |picture| picture.ready).await
    }

    pub(crate) async fn await_all_in_sync(&mut self, count: usize, within: Duration) -> anyhow::Result<()> {
        self.until("every broker to be in sync", within, |picture| picture.all_in_sync(count)).await
    }

    pub(crate) async fn await_primary_after(&mut self, epoch: Epoch, within: Duration) -> anyhow::Result<Election> {
        let newer = |picture: &Picture| picture.primary.clone().filter(|election| election.epoch > epoch);
        self.until("a new primary", within, |picture| newer(picture).is_some()).await?;
        newer(&self.picture).ok_or_else(|| anyhow::anyhow!("the new primary is gone"))
    }

    /// Keeps seeing what happens while something else is waited for.
    pub(crate) async fn during<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        tokio::pin!(awaited);
        loop {
            tokio::select! {
                outcome = &mut awaited => return outcome,
                Some(event) = self.events.recv() => self.see(event),
            }
        }
    }

    async fn until(&mut self, what: &str, within: Duration, met: impl Fn(&Picture) -> bool) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        let mut said = false;
        loop {
            self.catch_up();
            if met(&self.picture) {
                return Ok(());
            }
            if !said {
                self.say(&format!("waiting for {what}"));
                said = true;
            }
            match tokio::time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.see(event),
                Ok(None) => bail!("the cluster has ended while waiting for {what}"),
                Err(_) => bail!("waited {within:?} for {what}: {}", self.picture.to_text()),
            }
        }
    }

    fn catch_up(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.see(event);
        }
    }

    fn see(&mut self, event: Event) {
        match &event {
            Event::Ready { .. } => {}
            _ => self.say(&format!("  {}", event.to_text())),
        }
        self.picture.fold(event);
    }
}

impl Picture {
    fn fold(&mut self, event: Event) {
        match event {
            Event::Ready { .. } => self.ready = true,
            Event::Primary { name, epoch, elected, .. } => {
                self.primary = Some(Election { name, epoch, elected: elected.map(|elected| elected.within) });
            }
            Event::InSync { names, epoch } => {
                self.in_sync = names.into_iter().collect();
                self.in_sync_epoch = epoch;
            }
            Event::Started { .. } | Event::Serving { .. } | Event::Ended { .. } | Event::Note { .. } => {}
        }
    }

    fn all_in_sync(&self, count: usize) -> bool {
        let epoch = self.primary.as_ref().map(|election| election.epoch);
        self.in_sync.len() == count && Some(self.in_sync_epoch) == epoch
    }

    fn to_text(&self) -> String {
        let primary = self.primary.as_ref().map_or("none", |election| election.name.as_str());
        let in_sync: Vec<_> = self.in_sync.iter().map(String::as_str).collect();
        format!("the primary is {primary}, in sync are [{}]", in_sync.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(name: &str, epoch: u64) -> Event {
        Event::Primary { name: name.into(), epoch: Epoch(epoch), reason: "test".into(), elected: None }
    }

    fn in_sync(names: &[&str], epoch: u64) -> Event {
        Event::InSync { names: names.iter().map(ToString::to_string).collect(), epoch: Epoch(epoch) }
    }

    #[tokio::test]
    async fn a_full_set_of_an_earlier_epoch_is_not_a_full_set() {
        let (events, told) = mpsc::channel(10);
        let mut scene = Scene::new(told, true);
        for event in [primary("dev-0", 1), in_sync(&["dev-0", "dev-1"], 1), primary("dev-1", 2)] {
            events.try_send(event).unwrap();
        }
        assert_eq!(scene.primary(), Some(("dev-1".into(), Epoch(2))));
        let error = scene.await_all_in_sync(2, Duration::from_millis(1)).await.unwrap_err().to_string();
        assert!(error.contains("the primary is dev-1"), "{error}");
        events.try_send(in_sync(&["dev-1"], 2)).unwrap();
        events.try_send(in_sync(&["dev-0", "dev-1"], 2)).unwrap();
        scene.await_all_in_sync(2, Duration::from_secs(20)).await.unwrap();
    }

    #[tokio::test]
    async fn the_next_primary_is_one_of_a_higher_epoch() {
        let (events, told) = mpsc::channel(10);
        let mut scene = Scene::new(told, true);
        events.try_send(primary("dev-0", 4)).unwrap();
        assert!(scene.await_primary_after(Epoch(4), Duration::from_millis(1)).await.is_err());
        events.try_send(primary("dev-0", 5)).unwrap();
        assert_eq!(scene.await_primary_after(Epoch(4), Duration::from_secs(20)).await.unwrap().epoch, Epoch(5));
    }
}
