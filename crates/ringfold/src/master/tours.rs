//! Rings for the machine, sought by a thread of their own so that nothing waits for them.
//!
//! A question is answered soon with the best ring that was found by then. After that a better one is sought
//! for some more time; the machine keeps it for the next time that the peers ask for a better topology.

use super::limits;
use ringfold_fabric::poller::Poller;
use ringfold_proto::id::PeerId;
use ringfold_proto::master::{TourAnswer, TourQuestion};
use ringfold_topology::{
    BandwidthMatrix, Edge, Effort, Link, NodeCount, NodeIndex, Objective, Progress, Seed, Solver,
    fewest_left_out,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is done between two looks at the clock: some milliseconds of work.
const SLICE: Effort = Effort(500_000);

/// What the search for whom to leave out may cost.
const LEFT_OUT_EFFORT: Effort = Effort(2_000_000);

/// The machine's side: questions go out, answers come back.
#[derive(Debug)]
pub(super) struct Tours {
    poller: Arc<Poller>,
    first_max: Duration,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    questions: Sender<TourQuestion>,
    answers: Receiver<(u64, TourAnswer)>,
    handle: JoinHandle<()>,
}

impl Tours {
    /// Nothing is started before the first question. A ring is waited for `patience` at most.
    pub fn new(poller: Arc<Poller>, patience: Duration) -> Self {
        Self { poller, first_max: limits::TOUR_FIRST_MAX.min(patience / 2), thread: None }
    }

    /// Has a ring sought. The poller is kicked when there is one.
    pub fn ask(&mut self, question: TourQuestion) -> io::Result<()> {
        if self.thread.as_ref().is_none_or(|t| t.handle.is_finished()) {
            self.thread = Some(self.start()?);
        }
        if let Some(thread) = &self.thread {
            // If it has just ended, the machine's own deadline stands in for an answer.
            let _ = thread.questions.send(question);
        }
        Ok(())
    }

    /// A ring that was found, and the ticket of its question.
    pub fn answer(&mut self) -> Option<(u64, TourAnswer)> {
        self.thread.as_ref()?.answers.try_recv().ok()
    }

    fn start(&self) -> io::Result<Thread> {
        let (questions, asked) = mpsc::channel();
        let (told, answers) = mpsc::channel();
        let (poller, first_max) = (self.poller.clone(), self.first_max);
        let tell = move |ticket, answer| {
            let _ = told.send((ticket, answer));
            poller.kick();
        };
        let handle = std::thread::Builder::new().name("ringfold-tours".into()).spawn(move || {
            Seeker { tell, first_max, jobs: Vec::new(), known: VecDeque::new() }.work(&asked)
        })?;
        Ok(Thread { questions, answers, handle })
    }
}

impl Drop for Tours {
    fn drop(&mut self) {
        if let Some(Thread { questions, handle, .. }) = self.thread.take() {
            drop(questions);
            // It sees that within a slice. If it panicked, that was told on the way.
            let _ = handle.join();
        }
    }
}

/// The thread's side.
struct Seeker<T> {
    tell: T,
    first_max: Duration,
    jobs: Vec<Job>,
    /// The last ring of each group, so that the next search never ends with a worse one.
    known: VecDeque<Vec<PeerId>>,
}

/// A question, and how far its search has come.
struct Job {
    question: TourQuestion,
    matrix: BandwidthMatrix,
    solver: Solver,
    since: Instant,
    /// What was told last, and when.
    told: Option<(Vec<PeerId>, Instant)>,
}

impl<T: FnMut(u64, TourAnswer)> Seeker<T> {
    /// Seeks until nobody can ask any more.
    fn work(mut self, asked: &Receiver<TourQuestion>) {
        loop {
            let question = match self.jobs.is_empty() {
                true => asked.recv().map_err(|_| TryRecvError::Disconnected),
                false => asked.try_recv(),
            };
            match question {
                Ok(question) => self.take(question),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            for mut job in std::mem::take(&mut self.jobs) {
                if self.advance(&mut job) {
                    self.jobs.push(job);
                }
            }
        }
    }

    fn take(&mut self, question: TourQuestion) {
        let asked: BTreeSet<_> = question.nodes.iter().copied().collect();
        // Peers are in one group: an improvement of an older ring of theirs is of no use any more.
        self.jobs.retain(|job| job.told.is_none() || !job.question.nodes.iter().any(|n| asked.contains(n)));
        let Ok(count) = NodeCount::new(question.nodes.len()) else {
            let answer = TourAnswer { order: question.nodes, left_out: Vec::new() };
            return (self.tell)(question.ticket, answer);
        };
        let matrix = matrix(count, &question);
        let mut solver = Solver::new(&matrix, Objective::SlowestThenSum, Seed(question.ticket));
        let known = self.known.iter().find(|k| k.len() == asked.len() && k.iter().all(|n| asked.contains(n)));
        if let Some(known) = known {
            let index = |peer: &PeerId| question.nodes.iter().position(|n| n == peer);
            let order: Vec<_> = known.iter().filter_map(index).map(|i| NodeIndex(i as u16)).collect();
            // It may use an edge that is gone; then it is no help.
            let _ = solver.offer(&order);
        }
        self.jobs.push(Job { question, matrix, solver, since: Instant::now(), told: None });
    }

    /// Whether there is more to be done.
    fn advance(&mut self, job: &mut Job) -> bool {
        let progress = job.solver.improve(SLICE);
        let now = Instant::now();
        let spent = now - job.since;
        let is_final = matches!(progress, Progress::Optimal | Progress::Impossible);
        let is_over = is_final || spent >= self.first_max + limits::TOUR_IMPROVE_MAX;
        let is_due = match &job.told {
            None => spent >= self.first_max,
            Some((_, at)) => now >= *at + limits::TOUR_REPORT_PAUSE,
        };
        if !is_due && !is_over {
            return true;
        }
        let Some(answer) = job.answer() else { return false };
        let is_whole = answer.left_out.is_empty();
        if job.told.as_ref().is_none_or(|(order, _)| *order != answer.order) {
            job.told = Some((answer.order.clone(), now));
            self.remember(answer.order.clone());
            (self.tell)(job.question.ticket, answer);
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

impl Job {
    /// The best ring so far or, where there is none, the ring that leaves out the fewest.
    fn answer(&self) -> Option<TourAnswer> {
        let nodes = &self.question.nodes;
        let peers = |indices: &[NodeIndex]| {
            indices.iter().filter_map(|n| nodes.get(n.index()).copied()).collect::<Vec<_>>()
        };
        if let Ok(tour) = self.solver.outcome() {
            return Some(TourAnswer { order: peers(tour.order()), left_out: Vec::new() });
        }
        let oldest_first: Vec<_> = self.matrix.nodes().nodes().collect();
        let seed = Seed(self.question.ticket);
        let left = fewest_left_out(&self.matrix, &oldest_first, LEFT_OUT_EFFORT, seed).ok()?;
        Some(TourAnswer { order: peers(&left.ring), left_out: peers(&left.nodes) })
    }
}

fn matrix(count: NodeCount, question: &TourQuestion) -> BandwidthMatrix {
    let mut matrix = BandwidthMatrix::new(count);
    let edge = |from: usize, to: usize| Edge { from: NodeIndex(from as u16), to: NodeIndex(to as u16) };
    for (from, to, speed) in &question.bandwidth {
        // A speed that can't be is as good as none.
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

    fn question(ticket: u64, nodes: usize) -> TourQuestion {
        let pairs = (0..nodes).flat_map(|i| (0..nodes).filter(move |j| *j != i).map(move |j| (i, j)));
        let bandwidth = pairs.map(|(i, j)| (i, j, 1_000_000 + ((i * 7919 + j * 104_729) % 1000) as u64));
        TourQuestion {
            ticket,
            nodes: (0..nodes).map(|n| PeerId(n as u128 + 1)).collect(),
            bandwidth: bandwidth.collect(),
            unreachable: Vec::new(),
        }
    }

    fn await_answer(tours: &mut Tours, poller: &Poller) -> (u64, TourAnswer) {
        let end = Instant::now() + Duration::from_secs(30);
        let mut ready = Readiness::default();
        loop {
            if let Some(answer) = tours.answer() {
                return answer;
            }
            assert!(Instant::now() < end, "no ring came back");
            poller.wait(&mut ready, Duration::from_secs(1)).unwrap();
        }
    }

    #[test]
    fn small_and_large_questions_are_answered_each_with_its_ticket() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = Tours::new(poller.clone(), Duration::from_millis(200));
        tours.ask(question(1, 5)).unwrap();
        tours.ask(TourQuestion { nodes: vec![PeerId(1000)], ..question(2, 0) }).unwrap();
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
    fn where_there_is_no_ring_the_newest_in_the_way_is_left_out() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = Tours::new(poller.clone(), Duration::from_secs(3));
        let mut cut = question(1, 4);
        cut.bandwidth.clear();
        cut.unreachable = (0..3).flat_map(|i| [(3, i), (i, 3)]).collect();
        tours.ask(cut).unwrap();
        let (_, answer) = await_answer(&mut tours, &poller);
        assert_eq!(answer.left_out, [PeerId(4)]);
        assert_eq!(answer.order.len(), 3);
    }

    #[test]
    fn the_thread_ends_soon_after_its_owner_even_amid_a_large_search() {
        let poller = Arc::new(Poller::new().unwrap());
        let mut tours = Tours::new(poller.clone(), Duration::from_secs(3));
        tours.ask(question(1, 1024)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        drop(tours);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
