//! What runs contained, for the line at the end.

use std::fmt;
use std::ops::AddAssign;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub seeds: u64,
    pub events: u64,
    pub elections: u64,
    pub hand_overs: u64,
    pub shrinks: u64,
    pub grows: u64,
    pub catch_ups: u64,
    pub resumes: u64,
    pub tails_cut: u64,
    pub checkpoints: u64,
    pub crashes: u64,
    pub power_losses: u64,
    pub disks_lost: u64,
    pub leases_deleted: u64,
    pub leases_recreated: u64,
    pub published: u64,
    pub confirmed: u64,
    pub delivered: u64,
    pub redelivered: u64,
    pub settled: u64,
    pub died: u64,
    pub expired: u64,
    pub sent_again: u64,
    /// Runs that ended with no member of the set left: a person's to judge.
    pub given_up: u64,
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        let Self { seeds, events, elections, hand_overs, shrinks, grows, catch_ups, resumes, tails_cut, .. } = other;
        let Self { checkpoints, crashes, power_losses, disks_lost, leases_deleted, leases_recreated, .. } = other;
        let Self { published, confirmed, delivered, redelivered, settled, died, expired, sent_again, given_up, .. } =
            other;
        self.seeds += seeds;
        self.events += events;
        self.elections += elections;
        self.hand_overs += hand_overs;
        self.shrinks += shrinks;
        self.grows += grows;
        self.catch_ups += catch_ups;
        self.resumes += resumes;
        self.tails_cut += tails_cut;
        self.checkpoints += checkpoints;
        self.crashes += crashes;
        self.power_losses += power_losses;
        self.disks_lost += disks_lost;
        self.leases_deleted += leases_deleted;
        self.leases_recreated += leases_recreated;
        self.published += published;
        self.confirmed += confirmed;
        self.delivered += delivered;
        self.redelivered += redelivered;
        self.settled += settled;
        self.died += died;
        self.expired += expired;
        self.sent_again += sent_again;
        self.given_up += given_up;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, events, elections, hand_overs, shrinks, grows, catch_ups, resumes, tails_cut, .. } = self;
        let Self { checkpoints, crashes, power_losses, disks_lost, leases_deleted, leases_recreated, .. } = self;
        let Self { published, confirmed, delivered, redelivered, settled, died, expired, sent_again, given_up, .. } =
            self;
        write!(
            f,
            "{seeds} seeds: {events} events; {elections} elections and {hand_overs} hand-overs, {shrinks} shrinks, \
             {grows} grows, {catch_ups} catch-ups, {resumes} resumes, {tails_cut} tails cut, {checkpoints} checkpoints; \
             {crashes} crashes, {power_losses} power losses, {disks_lost} disks lost, {leases_deleted} Leases deleted \
             and {leases_recreated} made anew; {published} messages published, {confirmed} confirmed, {delivered} \
             delivered ({redelivered} again), {settled} settled for good, {died} rejected and {expired} expired and dead-lettered, {sent_again} sent again by key; {given_up} left to a person"
        )
    }
}
