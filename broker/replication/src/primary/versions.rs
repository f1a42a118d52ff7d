//! The cluster's version: who may follow in it, when the next one may be written to the Lease, and how followers hear of it.

use std::time::Duration;

use understudy_record::ReplicaName;
use understudy_record::version::{ClusterVersion, VersionRange};

use super::{Primary, PrimaryOutput, StreamId};
use crate::message::PrimaryMessage;

impl Primary {
    /// Only what came with the versions up to this one is written and said.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.version
    }

    /// A higher version that may be written to the Lease now: this replica, each of `replicas` and each member of every set
    /// that may be in force is connected and knows it.
    pub fn next_version(&self, replicas: &[ReplicaName]) -> Option<ClusterVersion> {
        let members = self.commit.counted().map(|member| &member.name);
        let mut known = self.config.knows;
        for name in replicas.iter().chain(members).filter(|name| **name != self.config.me.name) {
            let follower = self.followers.values().find(|follower| follower.identity.name == *name)?;
            known = VersionRange { newest: known.newest.min(follower.knows.newest), ..known };
        }
        Some(known.newest).filter(|newest| *newest > self.version)
    }

    /// The Lease has this version. Every follower hears of it before the first record that it brought; one that does not know
    /// it, and came after the others had been asked, goes.
    pub fn handle_version(&mut self, now: Duration, version: ClusterVersion, out: &mut Vec<PrimaryOutput>) {
        if version <= self.version {
            return;
        }
        self.version = version;
        let streams: Vec<(StreamId, VersionRange)> =
            self.followers.iter().map(|(stream, follower)| (*stream, follower.knows)).collect();
        for (stream, knows) in streams {
            match knows.check(version) {
                Ok(()) => out.push(PrimaryOutput::Send(stream, PrimaryMessage::Version(version))),
                Err(why) => self.close(now, stream, &format!("its build {why}"), out),
            }
        }
        self.handle_timeout(now, out);
    }
}
