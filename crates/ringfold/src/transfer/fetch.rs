//! Fetching: a worker per source takes parts from the board, asks for several ahead, and reads each straight into
//! the user's memory.

use super::board::Board;
use super::gate::Gate;
use super::limits::{
    CONNECT_PATIENCE, REQUESTS_OWED_BYTES_MAX, RETRY_PAUSE, STALL_MAX, STRAGGLE_LOOK, STRIDE_BYTES,
    STRIKES_MAX,
};
use super::part::Part;
use super::wire::{Header, Request};
use super::{Connect, Counts, Done};
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
pub(super) struct Order {
    pub(super) entry: usize,
    pub(super) key: String,
    pub(super) dtype: DType,
    pub(super) count: u64,
    /// What it shall hash to.
    pub(super) target: u128,
    pub(super) bytes: u64,
    pub(super) parts: Vec<Part>,
}

/// One assignment being carried out.
pub(super) struct Fetch {
    number: u64,
    /// How entries are asked for.
    names: HashMap<usize, Name>,
    board: Mutex<Board>,
    /// Parts came back, sources went, or it is all over.
    changed: Condvar,
    gate: Arc<Gate>,
    connect: Connect,
    counts: Arc<Counts>,
    /// Taken by whoever tells.
    done: Mutex<Option<Done>>,
}

struct Name {
    key: String,
    dtype: DType,
    count: u64,
    hash: u128,
}

/// How a conversation with a source ended, if not by an error.
enum End {
    /// There is nothing more to be asked of it.
    Finished,
    /// It does not hold what it was said to.
    NotHeld,
}

impl Fetch {
    /// Begins. If it can't succeed, that is told at once.
    pub(super) fn start(
        number: u64,
        orders: Vec<Order>,
        sources: Vec<PeerId>,
        (connect, done, counts): (Connect, Done, Arc<Counts>),
        possible: bool,
    ) -> Arc<Self> {
        let name = |o: &Order| {
            let (key, dtype, count, hash) = (o.key.clone(), o.dtype, o.count, o.target);
            (o.entry, Name { key, dtype, count, hash })
        };
        let names = orders.iter().map(name).collect();
        let mut board = Board::new(orders, &sources);
        if !possible {
            board.outcome = Some(false);
        }
        let fetch = Arc::new(Self {
            number,
            names,
            board: Mutex::new(board),
            changed: Condvar::new(),
            gate: Gate::new(usize::MAX),
            connect,
            counts,
            done: Mutex::new(Some(done)),
        });
        fetch.recruit();
        if fetch.board.lock().outcome.is_some() {
            // Whoever assigns may not be able to listen now.
            let told = fetch.clone();
            if std::thread::Builder::new().name("ringfold-fetch".into()).spawn(move || told.tell()).is_err() {
                fetch.tell();
            }
        }
        fetch
    }

    /// Ends it, and returns all parts. When this returns, nobody writes to an entry.
    pub(super) fn stop(&self) -> Vec<Part> {
        // A thread that tells has taken it already.
        *self.done.lock() = None;
        self.board.lock().outcome.get_or_insert(false);
        self.changed.notify_all();
        self.gate.close();
        self.board.lock().drain()
    }

    /// Starts workers for the sources that shall have one.
    fn recruit(self: &Arc<Self>) {
        loop {
            let recruits = self.board.lock().recruit();
            if recruits.is_empty() {
                return;
            }
            for (peer, worker) in recruits {
                let fetch = self.clone();
                let work = move || fetch.work_safely(peer, worker);
                if let Err(error) = std::thread::Builder::new().name("ringfold-fetch".into()).spawn(work) {
                    tracing::warn!("nothing is fetched from {peer}: {error}");
                    self.board.lock().lose(peer);
                }
            }
        }
    }

    fn work_safely(self: Arc<Self>, peer: PeerId, worker: u64) {
        if catch_unwind(AssertUnwindSafe(|| self.work(peer, worker))).is_err() {
            tracing::error!("the fetch from {peer} panicked");
            self.board.lock().outcome.get_or_insert(false);
        }
        self.changed.notify_all();
        self.tell();
    }

    /// Connects and fetches until there is no more to do, or no more use in it.
    fn work(self: &Arc<Self>, peer: PeerId, worker: u64) {
        let (mut strikes, mut pause) = (0, RETRY_PAUSE);
        while self.board.lock().is_active(peer, worker) {
            let connected = (self.connect)(peer, CONNECT_PATIENCE);
            let mut progress = false;
            match connected.and_then(|stream| self.visit(peer, worker, &stream, &mut progress)) {
                Ok(End::Finished) => break,
                Ok(End::NotHeld) => {
                    tracing::warn!("{peer} does not hold the state that it was said to");
                    strikes = STRIKES_MAX;
                }
                Err(error) => {
                    tracing::debug!("fetching from {peer}: {error}");
                    (strikes, pause) = if progress { (1, RETRY_PAUSE) } else { (strikes + 1, pause * 2) };
                }
            }
            let mut board = self.board.lock();
            if strikes >= STRIKES_MAX && board.is_active(peer, worker) {
                board.lose(peer);
            }
            let end = Instant::now() + pause;
            while board.is_active(peer, worker) && !self.changed.wait_until(&mut board, end).timed_out() {}
        }
        // What it gave back is for others, and so is its place.
        self.board.lock().conclude();
        self.changed.notify_all();
        self.recruit();
    }

    fn visit(
        self: &Arc<Self>,
        peer: PeerId,
        worker: u64,
        stream: &BlockingConnection,
        progress: &mut bool,
    ) -> io::Result<End> {
        let _pass = self.gate.enter(peer, stream)?;
        let mut owed = Owed { fetch: self, peer, parts: VecDeque::new(), bytes: 0, request_bytes: 0 };
        stream.set_read_timeout(Some(STALL_MAX))?;
        stream.set_write_timeout(Some(STALL_MAX))?;
        let mut requests = Vec::new();
        loop {
            while owed.request_bytes < REQUESTS_OWED_BYTES_MAX {
                let Some(part) = self.next_part(peer, worker, owed.bytes) else { break };
                let request = self.request(&part).encode();
                owed.push(part, request.as_ref().map_or(0, Vec::len));
                requests.extend(request?);
            }
            if owed.parts.is_empty() {
                return Ok(End::Finished);
            }
            (&mut &*stream).write_all(&requests)?;
            requests.clear();
            let Some((part, _)) = owed.parts.front_mut() else { continue };
            self.board.lock().await_from(peer, Some(part.missing() as u64));
            if !self.receive(peer, stream, part, progress)? {
                return Ok(End::NotHeld);
            }
            let part = owed.pop();
            let mut board = self.board.lock();
            board.await_from(peer, None);
            part.into_iter().for_each(|part| board.arrived(part));
            let active = board.is_active(peer, worker);
            drop(board);
            // A wrong entry may now be wanted once more, from someone who stood by.
            self.changed.notify_all();
            self.recruit();
            if !active {
                return Ok(End::Finished);
            }
        }
    }

    /// What to ask for next. Whoever is owed nothing waits for it.
    fn next_part(&self, peer: PeerId, worker: u64, owed_bytes: u64) -> Option<Part> {
        let mut board = self.board.lock();
        loop {
            if !board.is_active(peer, worker) {
                return None;
            }
            let part = board.take(peer, owed_bytes);
            if part.is_some() || owed_bytes > 0 {
                return part;
            }
            self.changed.wait_for(&mut board, STRAGGLE_LOOK);
            if let Some(straggler) = board.straggler(peer) {
                tracing::info!("{straggler} keeps the others waiting; its parts are fetched elsewhere");
                self.gate.cut(straggler);
            }
        }
    }

    fn request(&self, part: &Part) -> Request {
        let Name { key, dtype, count, hash } = &self.names[&part.entry];
        let (first_leaf, leaves) = part.missing_leaves();
        Request { key: key.clone(), dtype: *dtype, count: *count, hash: *hash, first_leaf, leaves }
    }

    /// Reads the answer into the part. Whether the source holds it.
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
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not as many bytes as were asked for",
                ));
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

    /// Tells the outcome, if there is one that has not been told. Never called inside the gate, so that whoever is
    /// told may stop us.
    fn tell(&self) {
        let Some(complete) = self.board.lock().outcome else { return };
        let done = self.done.lock().take();
        if let Some(done) = done {
            done(self.number, complete);
        }
    }
}

/// What a source was asked for and has not sent. It goes back to the board, whatever happens.
struct Owed<'a> {
    fetch: &'a Fetch,
    peer: PeerId,
    /// Each with the length of its request.
    parts: VecDeque<(Part, usize)>,
    bytes: u64,
    request_bytes: usize,
}

impl Owed<'_> {
    fn push(&mut self, part: Part, request_bytes: usize) {
        self.bytes += part.missing() as u64;
        self.request_bytes += request_bytes;
        self.parts.push_back((part, request_bytes));
    }

    /// The first has arrived.
    fn pop(&mut self) -> Option<Part> {
        let (part, request_bytes) = self.parts.pop_front()?;
        self.request_bytes -= request_bytes;
        self.bytes = self.parts.iter().map(|(part, _)| part.missing() as u64).sum();
        Some(part)
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        let mut board = self.fetch.board.lock();
        board.break_off(self.peer);
        board.give_back(self.parts.drain(..).map(|(part, _)| part));
        self.fetch.changed.notify_all();
    }
}
