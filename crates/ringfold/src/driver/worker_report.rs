//! Reports of background threads to the driver.

use ringfold_fabric::poller::Poller;
use ringfold_proto::doctor::Finding;
use ringfold_proto::id::ConnId;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The result of a background thread.
#[derive(Debug)]
pub(crate) enum WorkerReport {
    /// The fetches of an assignment have ended.
    Fetched { number: u64, complete: bool },
    /// The bandwidth of a pair was measured; `None` if that failed.
    Probed { probe: u64, forward: Option<u64>, backward: Option<u64> },
    /// The host of this peer was examined, for the master of a connection.
    Examined { conn: ConnId, examination: u64, findings: Vec<Finding> },
}

pub(crate) struct WorkerReports {
    receiver: Receiver<WorkerReport>,
    sender: ReportSender,
}

/// Queues reports, and wakes the driver for each.
#[derive(Clone)]
pub(crate) struct ReportSender {
    sender: Sender<WorkerReport>,
    poller: Arc<Poller>,
}

impl WorkerReports {
    pub(crate) fn new(poller: &Arc<Poller>) -> Self {
        let (sender, receiver) = channel();
        Self { receiver, sender: ReportSender { sender, poller: poller.clone() } }
    }

    pub(crate) fn next(&self) -> Option<WorkerReport> {
        self.receiver.try_recv().ok()
    }

    pub(crate) fn sender(&self) -> ReportSender {
        self.sender.clone()
    }
}

impl ReportSender {
    /// Queues a report. It is dropped if the driver no longer exists.
    pub(crate) fn send(&self, report: WorkerReport) {
        if self.sender.send(report).is_ok() {
            self.poller.kick();
        }
    }
}
