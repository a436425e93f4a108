//! What threads beside the driver have to tell it.

use ringfold_fabric::poller::Poller;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Something that a thread found out.
#[derive(Debug)]
pub(crate) enum Note {
    /// The fetches of an assignment have ended.
    Fetched { number: u64, complete: bool },
    /// A pair was measured, or can't be.
    Probed { probe: u64, forward: Option<u64>, backward: Option<u64> },
}

/// Notes that have come.
pub(crate) struct Notes {
    receiver: Receiver<Note>,
    sender: NoteSender,
}

/// Where notes are left. The driver is woken for each.
#[derive(Clone)]
pub(crate) struct NoteSender {
    sender: Sender<Note>,
    poller: Arc<Poller>,
}

impl Notes {
    /// None yet.
    pub(crate) fn new(poller: &Arc<Poller>) -> Self {
        let (sender, receiver) = channel();
        Self { receiver, sender: NoteSender { sender, poller: poller.clone() } }
    }

    /// The next one.
    pub(crate) fn next(&self) -> Option<Note> {
        self.receiver.try_recv().ok()
    }

    /// For a thread.
    pub(crate) fn sender(&self) -> NoteSender {
        self.sender.clone()
    }
}

impl NoteSender {
    /// Leaves a note. If the driver is gone, nobody needs it.
    pub(crate) fn send(&self, note: Note) {
        if self.sender.send(note).is_ok() {
            self.poller.kick();
        }
    }
}
