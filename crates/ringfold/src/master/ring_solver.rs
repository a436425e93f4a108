//! Searches for rings on a background thread, so that the master does not wait.
//!
//! A question is answered soon with the best ring found so far. The search then continues for some time; the machine
//! keeps a better ring for the next time that the peers optimize the topology.

use super::limits;
use ringfold_fabric::poller::Poller;
use ringfold_proto::id::PeerId;
use ringfold_proto::master::{TourRequest, TourSolution};
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NodeCount, NodeIndex, Objective, Progress, Seed, Solver,
    exclude_fewest,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work between two checks of the clock: some milliseconds.
const SLICE: Effort = Effort(500_000);

/// The effort of the search for nodes to leave out.
const LEFT_OUT_EFFORT: Effort = Effort(2_000_000);

/// Sends questions to the search thread, and receives its answers.
#[derive(Debug)]
pub(super) struct RingSolver {
    poller: Arc<Poller>,
    first_max: Duration,
    thread: Option<SearchThread>,
}

#[derive(Debug)]
struct SearchThread {
    questions: Sender<TourRequest>,
    answers: Receiver<(u64, TourSolution)>,
    handle: JoinHandle<()>,
}

impl RingSolver {
    /// The thread starts with the first question. The machine waits for a ring for `timeout` at most.
    pub fn new(poller: Arc<Poller>, timeout: Duration) -> Self {
        Self { poller, first_max: limits::TOUR_FIRST_MAX.min(timeout / 2), thread: None }
    }

    /// Starts a search. The poller is woken when a ring is found.
    pub fn ask(&mut self, question: TourRequest) -> io::Result<()> {
        if self.thread.as_ref().is_none_or(|t| t.handle.is_finished()) {
            self.thread = Some(self.start()?);
        }
        if let Some(thread) = &self.thread {
            // If the thread has just ended, the machine's deadline replaces the answer.
            let _ = thread.questions.send(question);
        }
        Ok(())
    }

    /// The next ring found, and the ticket of its question.
    pub fn answer(&mut self) -> Option<(u64, TourSolution)> {
        self.thread.as_ref()?.answers.try_recv().ok()
    }

    fn start(&self) -> io::Result<SearchThread> {
        let (questions, receiver) = mpsc::channel();
        let (sender, answers) = mpsc::channel();
        let (poller, first_max) = (self.poller.clone(), self.first_max);
        let report = move |ticket, answer| {
            let _ = sender.send((ticket, answer));
            poller.kick();
        };
        let handle = std::thread::Builder::new().name("ringfold-tours".into()).spawn(move || {
            RingSearches { report, first_max, searches: Vec::new(), known: VecDeque::new() }.work(&receiver)
        })?;
        Ok(SearchThread { questions, answers, handle })
    }
}

impl Drop for RingSolver {
    fn drop(&mut self) {
        if let Some(SearchThread { questions, handle, .. }) = self.thread.take() {
            drop(questions);
            // The thread notices within a slice. A panic was already printed.
            let _ = handle.join();
        }
    }
}

struct RingSearches<R> {
    report: R,
    first_max: Duration,
    searches: Vec<RingSearch>,
    /// The last ring of each group; the next search is never worse.
    known: VecDeque<Vec<PeerId>>,
}

struct RingSearch {
    question: TourRequest,
    matrix: BandwidthMatrix,
    solver: Solver,
    since: Instant,
    /// The last reported ring, and when.
    reported: Option<(Vec<PeerId>, Instant)>,
}

impl<R: FnMut(u64, TourSolution)> RingSearches<R> {
    /// Searches until the sender of questions is dropped.
    fn work(mut self, questions: &Receiver<TourRequest>) {
        loop {
            let question = match self.searches.is_empty() {
                true => questions.recv().map_err(|_| TryRecvError::Disconnected),
                false => questions.try_recv(),
            };
            match question {
                Ok(question) => self.take(question),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            for mut search in std::mem::take(&mut self.searches) {
                if self.advance(&mut search) {
                    self.searches.push(search);
                }
            }
        }
    }

    fn take(&mut self, question: TourRequest) {
        let asked: BTreeSet<_> = question.nodes.iter().copied().collect();
        // A peer is in one group only, so searches for better rings of the same peers are obsolete.
        self.searches.retain(|search| {
            search.reported.is_none() || !search.question.nodes.iter().any(|n| asked.contains(n))
        });
        let Ok(count) = NodeCount::new(question.nodes.len()) else {
            let answer = TourSolution { order: question.nodes, left_out: Vec::new() };
            return (self.report)(question.id, answer);
        };
        let matrix = matrix(count, &question);
        let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(question.id));
        let known = self.known.iter().find(|k| k.len() == asked.len() && k.iter().all(|n| asked.contains(n)));
        if let Some(known) = known {
            let index = |peer: &PeerId| question.nodes.iter().position(|n| n == peer);
            let order: Vec<_> = known.iter().filter_map(index).map(|i| NodeIndex(i as u16)).collect();
            // The solver rejects a ring with an edge that no longer exists.
            let _ = solver.offer(&order);
        }
        self.searches.push(RingSearch { question, matrix, solver, since: Instant::now(), reported: None });
    }

    /// Continues a search; returns whether it is unfinished.
    fn advance(&mut self, search: &mut RingSearch) -> bool {
        let progress = search.solver.improve(SLICE);
        let now = Instant::now();
        let spent = now - search.since;
        let is_final = matches!(progress, Progress::Optimal | Progress::Impossible);
        let is_over = is_final || spent >= self.first_max + limits::TOUR_IMPROVE_MAX;
        let is_due = match &search.reported {
            None => spent >= self.first_max,
            Some((_, at)) => now >= *at + limits::TOUR_REPORT_PAUSE,
        };
        if !is_due && !is_over {
            return true;
        }
        let Some(answer) = search.answer() else { return false };
        let is_whole = answer.left_out.is_empty();
        if search.reported.as_ref().is_none_or(|(order, _)| *order != answer.order) {
            search.reported = Some((answer.order.clone(), now));
            self.remember(answer.order.clone());
            (self.report)(search.question.id, answer);
        }
        is_whole && !is_over
    }

    fn remember(&mut self, order: Vec<PeerId>) {
        let members: BTreeSet<_> = order.iter().copied().collect();
        self.known.retain(|k| !k.iter().any(|n| members.contains(n)));
        self.known.push_back(order);
        if self.known.len() > limits::TOURS_REMEMBERED_MAX {
            self.known.pop_front();
        }
    }
}

impl RingSearch {
    /// The best ring so far; if there is none, the ring that leaves out the fewest nodes.
    fn answer(&self) -> Option<TourSolution> {
        let nodes = &self.question.nodes;
        let peers = |indices: &[NodeIndex]| {
            indices.iter().filter_map(|n| nodes.get(n.index()).copied()).collect::<Vec<_>>()
        };
        if let Ok(tour) = self.solver.outcome() {
            return Some(TourSolution { order: peers(tour.order()), left_out: Vec::new() });
        }
        let oldest_first: Vec<_> = self.matrix.nodes().nodes().collect();
        let seed = Seed(self.question.id);
        let left = exclude_fewest(&self.matrix, &oldest_first, LEFT_OUT_EFFORT, seed).ok()?;
        Some(TourSolution { order: peers(&left.ring), left_out: peers(&left.nodes) })
    }
}

fn matrix(count: NodeCount, question: &TourRequest) -> BandwidthMatrix {
    let mut matrix = BandwidthMatrix::new(count);
    let edge = |from: usize, to: usize| Edge { from: NodeIndex(from as u16), to: NodeIndex(to as u16) };
    for (from, to, speed) in &question.bandwidth {
        // An invalid speed counts as unknown.
        if let Ok(link) = Link::measured(*speed as f64) {
            let _ = matrix.set(edge(*from, *to), link);
        }
    }
    for (from, to) in &question.unreachable {
        let _ = matrix.cut(edge(*from, *to));
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_fabric::poller::Readiness;

    fn question(id: u64, nodes: usize) -> TourRequest {
        let pairs = (0..nodes).flat_map(|i| (0..nodes).filter(move |j| *j != i).map(move |j| (i, j)));
        let bandwidth = pairs.map(|(i, j)| (i, j, 1_000_000 + ((i * 7919 + j * 104_729) % 1000) as u64));
        TourRequest {
            id,
            nodes: (0..nodes).map(|n| PeerId(n as u128 + 1)).collect(),
            bandwidth: bandwidth.collect(),
            unreachable: Vec::new(),
        }
    }

    fn await_answer(tours: &mut RingSolver, poller: &Poller) -> (u64, TourSolution) {
        let end = Instant::now() + Duration::from_secs(30);
        let mut ready = Readiness::default();
        loop {
            if let Some(answer) = tours.answer() {
                return answer;
            }
            assert!(Instant::now() < end, "no ring was found in time");
            poller.wait(&mut ready, Duration::from_secs(1)).unwrap();
        }
    }

    #[test]
    fn small_and_large_questions_are_answered_with_their_tickets() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = RingSolver::new(poller.clone(), Duration::from_millis(200));
        tours.ask(question(1, 5)).unwrap();
        tours.ask(TourRequest { nodes: vec![PeerId(1000)], ..question(2, 0) }).unwrap();
        let mut large = question(3, 40);
        large.nodes.iter_mut().for_each(|n| n.0 += 10_000);
        tours.ask(large).unwrap();
        let mut sizes = BTreeSet::new();
        while sizes.len() < 3 {
            let (ticket, answer) = await_answer(&mut tours, &poller);
            sizes.insert((ticket, answer.order.len()));
        }
        assert_eq!(sizes, BTreeSet::from([(1, 5), (2, 1), (3, 40)]));
    }

    #[test]
    fn if_there_is_no_ring_the_newest_blocking_node_is_left_out() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = RingSolver::new(poller.clone(), Duration::from_secs(3));
        let mut cut = question(1, 4);
        cut.bandwidth.clear();
        cut.unreachable = (0..3).flat_map(|i| [(3, i), (i, 3)]).collect();
        tours.ask(cut).unwrap();
        let (_, answer) = await_answer(&mut tours, &poller);
        assert_eq!(answer.left_out, [PeerId(4)]);
        assert_eq!(answer.order.len(), 3);
    }

    #[test]
    fn the_thread_ends_soon_after_its_owner_also_during_a_large_search() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = RingSolver::new(poller.clone(), Duration::from_secs(3));
        tours.ask(question(1, 1024)).unwrap();
        // The search has probably begun. A thread that has not begun yet ends soon, too.
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        drop(tours);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
