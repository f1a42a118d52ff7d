//! The streams of one cluster, one a replica: started, told where the pod is now, ended.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use understudy_record::ReplicaName;

use super::peer::{Address, Command, MAX_COMMANDS, Peer, PeerEvent};

/// Events of all peers that wait for the task: more than it takes in one turn even if every replica speaks at once; when it
/// is full the peers wait, and their streams with them.
const MAX_EVENTS: usize = 64;

struct Handle {
    addresses: watch::Sender<Option<Address>>,
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct Peers {
    handles: BTreeMap<ReplicaName, Handle>,
    events: mpsc::Sender<PeerEvent>,
}

impl Peers {
    pub(super) fn new() -> (Self, mpsc::Receiver<PeerEvent>) {
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        (Self { handles: BTreeMap::new(), events }, receiver)
    }

    /// A stream to each of these, at its address if it has one, and to no other.
    pub(super) fn update(&mut self, replicas: &[(ReplicaName, Option<Address>)]) {
        self.handles.retain(|name, _| replicas.iter().any(|(wanted, _)| wanted == name));
        for (name, address) in replicas {
            let handle = self.handles.entry(name.clone()).or_insert_with(|| start(name, self.events.clone()));
            handle.addresses.send_if_modified(|current| {
                // A pod that is gone for now keeps its stream: only another address ends it.
                let changed = address.is_some() && current != address;
                if changed {
                    current.clone_from(address);
                }
                changed
            });
        }
    }

    /// Sent if the stream is there and takes it; brokers learn all of it from the Lease as well.
    pub(super) fn send(&self, name: &ReplicaName, command: Command) -> bool {
        self.handles.get(name).is_some_and(|handle| handle.commands.try_send(command).is_ok())
    }
}

fn start(name: &ReplicaName, events: mpsc::Sender<PeerEvent>) -> Handle {
    let (addresses, address_receiver) = watch::channel(None);
    let (commands, command_receiver) = mpsc::channel(MAX_COMMANDS);
    let peer = Peer { name: name.clone(), addresses: address_receiver, commands: command_receiver, events };
    Handle { addresses, commands, task: tokio::spawn(peer.run()) }
}
