//! Fetching: a worker per source takes parts from the plan, requests several ahead, and reads them into user memory.

use super::active_connections::ActiveConnections;
use super::entry_target::EntryTarget;
use super::fetch_plan::FetchPlan;
use super::limits::{
    CONNECT_MAX, REQUESTS_OWED_BYTES_MAX, RETRY_PAUSE, STALL_MAX, STRAGGLE_LOOK, STRIDE_BYTES, STRIKES_MAX,
};
use super::part::Part;
use super::wire::{Header, Request};
use super::{Connect, Counts, Done};
use crate::Error;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::PeerId;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An entry to be fetched.
pub(super) struct FetchOrder {
    pub(super) entry: usize,
    pub(super) key: String,
    pub(super) dtype: DType,
    pub(super) count: u64,
    /// The elected hash.
    pub(super) target: u128,
    pub(super) bytes: u64,
    pub(super) parts: Vec<Part>,
}

/// The fetch of one assignment.
pub(super) struct Fetch {
    number: u64,
    /// Requests for no leaves, by entry.
    requests: HashMap<usize, Request>,
    /// Allocated before parts are fetched.
    targets: Vec<Arc<EntryTarget>>,
    /// Why they cannot be allocated.
    failure: Mutex<Option<Error>>,
    plan: Mutex<FetchPlan>,
    /// Parts came back, sources were lost, or it has ended.
    changed: Condvar,
    connections: Arc<ActiveConnections>,
    connect: Connect,
    counts: Arc<Counts>,
    /// Taken by the thread that reports.
    done: Mutex<Option<Done>>,
}

/// How fetching from a source ended, if not by an error.
enum Conversation {
    /// Nothing more to request.
    Finished,
    /// It does not hold the content.
    NotHeld,
}

impl Fetch {
    /// Starts. If it can't succeed, that is reported at once.
    pub(super) fn start(
        number: u64,
        orders: Vec<FetchOrder>,
        sources: Vec<PeerId>,
        (connect, done, counts): (Connect, Done, Arc<Counts>),
        possible: bool,
    ) -> Arc<Self> {
        let request = |o: &FetchOrder| {
            let (key, dtype, count, hash) = (o.key.clone(), o.dtype, o.count, o.target);
            (o.entry, Request { key, dtype, count, hash, first_leaf: 0, leaves: 0 })
        };
        let requests = orders.iter().map(request).collect();
        let targets = orders.iter().filter_map(|order| order.parts.iter().find_map(Part::target)).collect();
        let mut plan = FetchPlan::new(orders, &sources);
        if !possible {
            plan.outcome = Some(false);
        }
        let fetch = Arc::new(Self {
            number,
            requests,
            targets,
            failure: Mutex::new(None),
            plan: Mutex::new(plan),
            changed: Condvar::new(),
            connections: ActiveConnections::new(usize::MAX),
            connect,
            counts,
            done: Mutex::new(Some(done)),
        });
        fetch.start_sources();
        if fetch.plan.lock().outcome.is_some() {
            // The caller may hold a lock that the callback needs.
            let reporter = fetch.clone();
            if std::thread::Builder::new()
                .name("ringfold-fetch".into())
                .spawn(move || reporter.report())
                .is_err()
            {
                fetch.report();
            }
        }
        fetch
    }

    /// Ends it, and returns all parts. When this returns, no thread writes to an entry.
    pub(super) fn stop(&self) -> Vec<Part> {
        // A thread that reports has taken it already.
        *self.done.lock() = None;
        self.plan.lock().outcome.get_or_insert(false);
        self.changed.notify_all();
        self.connections.close();
        self.plan.lock().drain()
    }

    /// Why it failed, if that is this peer's fault.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Allocates what parts are fetched into. That may take long, so no registered thread does it.
    fn allocate_targets(&self) {
        for target in &self.targets {
            if self.plan.lock().outcome.is_some() {
                return;
            }
            if let Err(error) = target.allocate() {
                tracing::error!("failed to allocate memory for a fetch: {error}");
                *self.failure.lock() = Some(error);
                self.plan.lock().outcome.get_or_insert(false);
            }
        }
    }

    /// Starts workers for the sources that need one.
    fn start_sources(self: &Arc<Self>) {
        loop {
            let started = self.plan.lock().start_sources();
            if started.is_empty() {
                return;
            }
            for (peer, worker) in started {
                let fetch = self.clone();
                let run = move || fetch.run_worker(peer, worker);
                if let Err(error) = std::thread::Builder::new().name("ringfold-fetch".into()).spawn(run) {
                    tracing::warn!("skipping {peer} as a state source: {error}");
                    self.plan.lock().lose(peer);
                }
            }
        }
    }

    fn run_worker(self: Arc<Self>, peer: PeerId, worker: u64) {
        if catch_unwind(AssertUnwindSafe(|| self.run(peer, worker))).is_err() {
            tracing::error!("the fetch from {peer} panicked");
            self.plan.lock().outcome.get_or_insert(false);
        }
        self.changed.notify_all();
        self.report();
    }

    /// Connects and fetches until there is nothing more to do, or the source is lost.
    fn run(self: &Arc<Self>, peer: PeerId, worker: u64) {
        self.allocate_targets();
        let (mut strikes, mut pause) = (0, RETRY_PAUSE);
        while self.plan.lock().is_active(peer, worker) {
            let connected = (self.connect)(peer, CONNECT_MAX);
            let mut progress = false;
            match connected.and_then(|stream| self.fetch_from(peer, worker, &stream, &mut progress)) {
                Ok(Conversation::Finished) => break,
                Ok(Conversation::NotHeld) => {
                    tracing::warn!("{peer} does not hold the state that it offered");
                    self.plan.lock().note_failure(peer, "does not hold the state that it offered".into());
                    strikes = STRIKES_MAX;
                }
                Err(error) => {
                    tracing::debug!("fetching from {peer}: {error}");
                    self.plan.lock().note_failure(peer, error.to_string());
                    (strikes, pause) = if progress { (1, RETRY_PAUSE) } else { (strikes + 1, pause * 2) };
                }
            }
            let mut plan = self.plan.lock();
            if strikes >= STRIKES_MAX && plan.is_active(peer, worker) {
                tracing::warn!("dropping {peer} as a state source after {strikes} failures in a row");
                plan.lose(peer);
            }
            let end = Instant::now() + pause;
            while plan.is_active(peer, worker) && !self.changed.wait_until(&mut plan, end).timed_out() {}
        }
        // Other sources fetch what it gave back.
        self.plan.lock().conclude();
        self.changed.notify_all();
        self.start_sources();
    }

    fn fetch_from(
        self: &Arc<Self>,
        peer: PeerId,
        worker: u64,
        stream: &BlockingConnection,
        progress: &mut bool,
    ) -> io::Result<Conversation> {
        let _pass = self.connections.enter(peer, stream)?;
        let mut pending =
            PendingParts { fetch: self, peer, parts: VecDeque::new(), bytes: 0, request_bytes: 0 };
        self.plan.lock().connected(peer, stream.round_trip().unwrap_or_default());
        stream.set_read_timeout(Some(STALL_MAX))?;
        stream.set_write_timeout(Some(STALL_MAX))?;
        let mut requests = Vec::new();
        loop {
            while pending.request_bytes < REQUESTS_OWED_BYTES_MAX {
                let Some(mut part) = self.next_part(peer, worker, pending.bytes) else { break };
                part.prepare();
                let request = self.request(&part).encode();
                pending.push(part, request.as_ref().map_or(0, Vec::len));
                requests.extend(request?);
            }
            if pending.parts.is_empty() {
                return Ok(Conversation::Finished);
            }
            (&mut &*stream).write_all(&requests)?;
            requests.clear();
            let Some((part, _)) = pending.parts.front_mut() else { continue };
            self.plan.lock().await_from(peer, Some(part.missing() as u64));
            if !self.receive(peer, stream, part, progress)? {
                return Ok(Conversation::NotHeld);
            }
            let part = pending.pop();
            let mut plan = self.plan.lock();
            plan.await_from(peer, None);
            part.into_iter().for_each(|part| plan.arrived(part));
            let active = plan.is_active(peer, worker);
            drop(plan);
            // An invalid entry may be fetched again, from a source in reserve.
            self.changed.notify_all();
            self.start_sources();
            if !active {
                return Ok(Conversation::Finished);
            }
        }
    }

    /// The next part to request. Waits for one if nothing is pending.
    fn next_part(&self, peer: PeerId, worker: u64, owed_bytes: u64) -> Option<Part> {
        let mut plan = self.plan.lock();
        loop {
            if !plan.is_active(peer, worker) {
                return None;
            }
            let part = plan.take(peer, owed_bytes);
            if part.is_some() || owed_bytes > 0 {
                return part;
            }
            self.changed.wait_for(&mut plan, STRAGGLE_LOOK);
            if let Some(straggler) = plan.straggler(peer) {
                tracing::info!("{straggler} is slow; fetching its parts from other sources");
                self.connections.cut(straggler);
            }
        }
    }

    fn request(&self, part: &Part) -> Request {
        let (first_leaf, leaves) = part.missing_leaves();
        Request { first_leaf, leaves, ..self.requests[&part.entry].clone() }
    }

    /// Reads the answer into the part. Returns whether the source holds it.
    fn receive(
        &self,
        peer: PeerId,
        stream: &BlockingConnection,
        part: &mut Part,
        progress: &mut bool,
    ) -> io::Result<bool> {
        let mut header = [0; Header::BYTES];
        (&mut &*stream).read_exact(&mut header)?;
        match Header::decode(header)? {
            Header::NotHeld => return Ok(false),
            Header::Leaves(bytes) if bytes == part.missing() as u64 => {}
            Header::Leaves(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong number of bytes in an answer"));
            }
        }
        let mut filled = part.have();
        while part.missing() > 0 {
            let read = match (&mut &*stream).read(part.room(filled, STRIDE_BYTES)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            filled += read;
            self.counts.rx_bytes.fetch_add(read as u64, Ordering::Relaxed);
            let before = part.have();
            part.fill(filled, peer);
            *progress |= part.have() > before;
        }
        Ok(true)
    }

    /// Reports the outcome once. Never called by a registered thread, because the callback may stop the fetch.
    fn report(&self) {
        let Some(complete) = self.plan.lock().outcome else { return };
        let done = self.done.lock().take();
        if let Some(done) = done {
            done(self.number, complete);
        }
    }
}

/// Requested parts that a source has not sent. They go back to the plan when this is dropped.
struct PendingParts<'a> {
    fetch: &'a Fetch,
    peer: PeerId,
    /// Each with the length of its request.
    parts: VecDeque<(Part, usize)>,
    bytes: u64,
    request_bytes: usize,
}

impl PendingParts<'_> {
    fn push(&mut self, part: Part, request_bytes: usize) {
        self.bytes += part.missing() as u64;
        self.request_bytes += request_bytes;
        self.parts.push_back((part, request_bytes));
    }

    /// The first part has arrived.
    fn pop(&mut self) -> Option<Part> {
        let (part, request_bytes) = self.parts.pop_front()?;
        self.request_bytes -= request_bytes;
        self.bytes = self.parts.iter().map(|(part, _)| part.missing() as u64).sum();
        Some(part)
    }
}

impl Drop for PendingParts<'_> {
    fn drop(&mut self) {
        let mut plan = self.fetch.plan.lock();
        plan.interrupt(self.peer);
        plan.give_back(self.parts.drain(..).map(|(part, _)| part));
        self.fetch.changed.notify_all();
    }
}
