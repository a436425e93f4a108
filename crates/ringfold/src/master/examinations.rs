//! Examinations: a doctor asks, all peers examine themselves, and their findings go back to the doctor.

use super::peer_connection::PeerConnection;
use crate::doctor::StartExamination;
use crate::doctor::limits::{EXAMINATION_MAX, EXAMINATIONS_MAX};
use ringfold_fabric::poller::Poller;
use ringfold_proto::doctor::{DoctorAnswer, Finding};
use ringfold_proto::hello::Features;
use ringfold_proto::id::ConnId;
use ringfold_proto::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request of a doctor: where the answers go, and its place among the examinations in progress.
type Request = (Sender<DoctorAnswer>, Arc<()>);

/// The examinations in progress.
pub(super) struct Examinations {
    requests: Receiver<Request>,
    running: BTreeMap<u64, Examination>,
    last: u64,
}

struct Examination {
    answers: Sender<DoctorAnswer>,
    /// Peers that have not answered, and their names.
    waiting: BTreeMap<ConnId, String>,
    deadline: Time,
    _counted: Arc<()>,
}

impl Examinations {
    /// None yet. The function, which any thread may call, asks for one.
    pub fn new(poller: Arc<Poller>) -> (Self, StartExamination) {
        let (sender, requests) = channel();
        let counted = Arc::new(());
        let start = move || {
            let place = counted.clone();
            if Arc::strong_count(&counted) > EXAMINATIONS_MAX + 1 {
                return None;
            }
            let (answers, receiver) = channel();
            sender.send((answers, place)).ok()?;
            poller.kick();
            Some(receiver)
        };
        (Self { requests, running: BTreeMap::new(), last: 0 }, Box::new(start))
    }

    /// When to call [`Examinations::expire`] at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.running.values().map(|examination| examination.deadline).min()
    }

    /// Begins an examination, if one was asked for. Returns its number and the connections of the peers that are to be asked.
    pub fn begin(
        &mut self,
        now: Time,
        peers: &BTreeMap<ConnId, PeerConnection>,
    ) -> Option<(u64, Vec<ConnId>)> {
        let (answers, counted) = self.requests.try_recv().ok()?;
        self.last += 1;
        let mut waiting = BTreeMap::new();
        for (conn, peer) in peers {
            let Some(name) = &peer.name else { continue };
            if peer.features.contains(Features::EXAMINE) {
                waiting.insert(*conn, name.clone());
            } else {
                answer(&answers, name, Vec::new(), Some("it is of a release without a doctor"));
            }
        }
        let asked = waiting.keys().copied().collect();
        let deadline = now + EXAMINATION_MAX;
        self.running.insert(self.last, Examination { answers, waiting, deadline, _counted: counted });
        self.end_complete();
        Some((self.last, asked))
    }

    /// A peer has answered.
    pub fn handle_answer(&mut self, conn: ConnId, number: u64, findings: Vec<Finding>) {
        let Some(examination) = self.running.get_mut(&number) else { return };
        if let Some(name) = examination.waiting.remove(&conn) {
            answer(&examination.answers, &name, findings, None);
        }
        self.end_complete();
    }

    /// A peer's connection has ended.
    pub fn forget(&mut self, conn: ConnId) {
        for examination in self.running.values_mut() {
            if let Some(name) = examination.waiting.remove(&conn) {
                answer(
                    &examination.answers,
                    &name,
                    Vec::new(),
                    Some("its connection to the master has ended"),
                );
            }
        }
        self.end_complete();
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Time) {
        for examination in self.running.values_mut().filter(|examination| examination.deadline <= now) {
            for name in std::mem::take(&mut examination.waiting).into_values() {
                let why = format!("no answer within {} s", EXAMINATION_MAX.as_secs());
                answer(&examination.answers, &name, Vec::new(), Some(&why));
            }
        }
        self.end_complete();
    }

    /// The doctor learns by the end of the channel that all have answered.
    fn end_complete(&mut self) {
        self.running.retain(|_, examination| !examination.waiting.is_empty());
    }
}

fn answer(answers: &Sender<DoctorAnswer>, peer: &str, findings: Vec<Finding>, unanswered: Option<&str>) {
    let (peer, unanswered) = (peer.to_owned(), unanswered.map(str::to_owned));
    // The doctor may have given up.
    let _ = answers.send(DoctorAnswer::Examined { peer, findings, unanswered });
}
