//! All scripted peers of a measurement, and the events that are measured.

use super::super::interrupt::Interrupt;
use super::scripted_peer::{PeerEvent, ScriptedPeer, SharedDecoder};
use anyhow::{Context, Result, bail};
use ringfold_fabric::clock::Clock;
use ringfold_fabric::poller::{Poller, Readiness, Token};
use ringfold_fabric::random;
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::{PeerId, Tag};
use ringfold_proto::integrity::Integrity;
use ringfold_proto::peer::Failure;
use ringfold_proto::reduce_op::ReduceOp;
use ringfold_proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(120);

/// How often the deadlines of the peers are checked.
const TIMER_INTERVAL: Duration = Duration::from_millis(25);

/// Peers that dial at the same time.
const DIALS_AT_ONCE: usize = 64;

/// Bytes of control messages, without heartbeats.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) to_master: u64,
    pub(super) from_master: u64,
}

/// What has happened since the begin of an event.
#[derive(Default)]
struct Progress {
    registered: usize,
    committed: usize,
    failed: usize,
    /// Peers for which an epoch of the expected size is open.
    opened: usize,
    expected_world: usize,
    /// A call failed for another reason than the loss of a peer.
    unexpected: Option<Failure>,
}

impl Progress {
    fn note(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Registered => self.registered += 1,
            PeerEvent::Opened(world) if world == self.expected_world => self.opened += 1,
            PeerEvent::Opened(_) => {}
            PeerEvent::Completed(Ok(_)) => self.committed += 1,
            PeerEvent::Completed(Err(Failure::Aborted(_))) => self.failed += 1,
            PeerEvent::Completed(Err(failure)) => self.unexpected = Some(failure),
        }
    }
}

pub(super) struct Swarm {
    pub(super) traffic: Traffic,
    clock: Clock,
    poller: Arc<Poller>,
    ready: Readiness,
    master: SocketAddr,
    interrupt: Interrupt,
    peers: BTreeMap<PeerId, ScriptedPeer>,
    owners: HashMap<Token, PeerId>,
    dialing: BTreeSet<PeerId>,
    dead: BTreeSet<PeerId>,
    created: u64,
    next_timers: Time,
    decoder: SharedDecoder,
    progress: Progress,
}

impl Swarm {
    pub(super) fn new(master: SocketAddr, interrupt: Interrupt) -> Result<Self> {
        Ok(Self {
            traffic: Traffic::default(),
            clock: Clock::start(),
            poller: Arc::new(Poller::new()?),
            ready: Readiness::default(),
            master,
            interrupt,
            peers: BTreeMap::new(),
            owners: HashMap::new(),
            dialing: BTreeSet::new(),
            dead: BTreeSet::new(),
            created: 0,
            next_timers: Time::ZERO,
            decoder: SharedDecoder::default(),
            progress: Progress::default(),
        })
    }

    /// Starts a run of so many peers: the first one admits all others at once.
    pub(super) fn start(&mut self, count: usize) -> Result<Duration> {
        let began = self.begin(1);
        let first = self.connect()?;
        self.wait("the first peer", |swarm| swarm.progress.opened == 1)?;
        while self.peers.len() < count {
            self.wait("room to dial", |swarm| swarm.dialing.len() < DIALS_AT_ONCE)?;
            self.connect()?;
        }
        self.wait("all peers to register", |swarm| swarm.progress.registered == count)?;
        self.progress = Progress { expected_world: count, ..Progress::default() };
        self.call(first, |peer, now| peer.machine.update_topology(now, None).map(drop))?;
        self.wait("all peers to be accepted", |swarm| swarm.progress.opened == count)?;
        Ok(began.elapsed())
    }

    /// All peers ask whether others are pending. From the first vote until the last peer has the answer.
    pub(super) fn vote(&mut self) -> Result<Duration> {
        let began = self.begin(0);
        self.call_all(|peer, now| peer.machine.are_peers_pending(now, None).map(drop))?;
        self.wait("the answer to a vote", |swarm| swarm.progress.committed == swarm.peers.len())?;
        Ok(began.elapsed())
    }

    /// An operation is done at all peers. From the first vote until the last peer has the commit.
    pub(super) fn commit(&mut self) -> Result<Duration> {
        let began = self.begin(0);
        self.call_all(|peer, now| peer.machine.collective(now, TAG, DESCRIPTOR).map(drop))?;
        self.wait("a commit", |swarm| swarm.progress.committed == swarm.peers.len())?;
        Ok(began.elapsed())
    }

    /// One more peer joins. From its dial until the epoch with it is open at all peers.
    pub(super) fn join(&mut self) -> Result<Duration> {
        let world = self.peers.len() + 1;
        let began = self.begin(world);
        let new = self.connect()?;
        self.wait("a peer to register", |swarm| swarm.progress.registered == 1)?;
        let members: Vec<_> = self.peers.keys().copied().filter(|peer| *peer != new).collect();
        for peer in members {
            self.call(peer, |peer, now| peer.machine.update_topology(now, None).map(drop))?;
        }
        self.wait("a peer to be accepted", |swarm| swarm.progress.opened == world)?;
        let elapsed = began.elapsed();
        self.wait("the answers", |swarm| swarm.progress.committed == world)?;
        Ok(elapsed)
    }

    /// A peer dies while all others are in an operation. Returns when their operations have failed, and when the next
    /// epoch is open at all of them.
    pub(super) fn lose(&mut self) -> Result<(Duration, Duration)> {
        let victim = self.peers.keys().copied().nth(self.peers.len() / 2).context("no peers")?;
        let others = self.peers.len() - 1;
        self.begin(others);
        let neighbours: Vec<_> = self.neighbours(victim);
        for peer in self.peers.keys().copied().filter(|peer| *peer != victim).collect::<Vec<_>>() {
            self.call(peer, |peer, now| {
                peer.is_slow = true;
                peer.machine.collective(now, TAG, DESCRIPTOR).map(drop)
            })?;
        }
        // They tell the master that they have started it.
        let pause = Instant::now();
        self.wait("announcements", |_| pause.elapsed() > Duration::from_millis(100))?;
        let began = Instant::now();
        self.dead.insert(victim);
        if let Some(token) = self.peers.remove(&victim).and_then(|peer| peer.token()) {
            self.owners.remove(&token);
        }
        // Its system closes its links, too.
        for peer in neighbours {
            self.call(peer, |peer, now| {
                peer.machine.handle_link_lost(now, victim);
                Ok(())
            })?;
        }
        self.wait("all to see a loss", |swarm| swarm.progress.failed == others)?;
        let seen = began.elapsed();
        self.wait("the next epoch", |swarm| swarm.progress.opened == others)?;
        self.peers.values_mut().for_each(|peer| peer.is_slow = false);
        Ok((seen, began.elapsed()))
    }

    fn begin(&mut self, expected_world: usize) -> Instant {
        self.progress = Progress { expected_world, ..Progress::default() };
        Instant::now()
    }

    fn connect(&mut self) -> Result<PeerId> {
        let peer = PeerId(random::id()?);
        self.created += 1;
        self.peers.insert(peer, ScriptedPeer::new(peer, self.created));
        self.dialing.insert(peer);
        self.call(peer, |peer, now| peer.machine.connect(now, None).map(drop))?;
        Ok(peer)
    }

    fn neighbours(&self, peer: PeerId) -> Vec<PeerId> {
        let epoch = self.peers.get(&peer).and_then(|peer| peer.machine.epoch());
        let found = epoch.and_then(|epoch| Some(epoch.neighbours(epoch.rank_of(peer)?)));
        found.unwrap_or_default().into_iter().map(|member| member.peer).collect()
    }

    fn call_all(&mut self, call: impl Fn(&mut ScriptedPeer, Time) -> Result<(), Failure>) -> Result<()> {
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.call(peer, &call)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        peer: PeerId,
        call: impl FnOnce(&mut ScriptedPeer, Time) -> Result<(), Failure>,
    ) -> Result<()> {
        let now = self.clock.now();
        let scripted = self.peers.get_mut(&peer).context("unknown peer")?;
        call(scripted, now).map_err(|failure| anyhow::anyhow!("a call failed: {failure}"))?;
        self.act(now, peer)
    }

    fn act(&mut self, now: Time, peer: PeerId) -> Result<()> {
        let Some(scripted) = self.peers.get_mut(&peer) else { return Ok(()) };
        let progress = &mut self.progress;
        scripted.act(now, self.master, &self.poller, &self.dead, &mut self.traffic, |event| {
            progress.note(event);
        })
    }

    /// Serves all peers until a condition holds.
    fn wait(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + EVENT_TIMEOUT;
        while !is_done(self) {
            self.interrupt.check()?;
            if let Some(failure) = self.progress.unexpected.take() {
                bail!("a call failed while waiting for {what}: {failure}");
            }
            if Instant::now() > end {
                bail!("timed out after {EVENT_TIMEOUT:?} waiting for {what}");
            }
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        let timeout = self.next_timers.since(self.clock.now());
        self.poller.wait(&mut ready, timeout)?;
        let now = self.clock.now();
        for token in ready.tokens() {
            self.handle_ready(now, token)?;
        }
        self.ready = ready;
        if self.next_timers <= now {
            self.next_timers = now + TIMER_INTERVAL;
            let is_due = |peer: &ScriptedPeer| peer.machine.poll_timeout().is_some_and(|at| at <= now);
            let due = self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(id, _)| *id);
            for peer in due.collect::<Vec<_>>() {
                if let Some(scripted) = self.peers.get_mut(&peer) {
                    scripted.machine.handle_timeout(now);
                }
                self.act(now, peer)?;
            }
            for peer in self.dialing.clone() {
                self.advance_dial(now, peer)?;
            }
        }
        Ok(())
    }

    fn handle_ready(&mut self, now: Time, token: Token) -> Result<()> {
        if let Some(peer) = self.owners.get(&token).copied() {
            return self.receive(now, peer);
        }
        let dials = |peer: &&PeerId| self.peers.get(*peer).is_some_and(|peer| peer.dials_with(token));
        match self.dialing.iter().find(dials).copied() {
            Some(peer) => self.advance_dial(now, peer),
            None => Ok(()),
        }
    }

    fn receive(&mut self, now: Time, peer: PeerId) -> Result<()> {
        let Some(scripted) = self.peers.get_mut(&peer) else { return Ok(()) };
        let progress = &mut self.progress;
        scripted.receive(now, &mut self.decoder, &mut self.traffic, |event| progress.note(event))?;
        self.act(now, peer)
    }

    fn advance_dial(&mut self, now: Time, peer: PeerId) -> Result<()> {
        let Some(scripted) = self.peers.get_mut(&peer) else { return Ok(()) };
        if scripted.advance_dial(now)? {
            self.dialing.remove(&peer);
            self.owners.extend(scripted.token().map(|token| (token, peer)));
            self.act(now, peer)?;
            // What followed the handshake may have been read already.
            return self.receive(now, peer);
        }
        Ok(())
    }
}

const TAG: Tag = Tag(0);

const DESCRIPTOR: Descriptor = Descriptor {
    collective: ringfold_proto::descriptor::Collective::AllReduce,
    count: 1,
    dtype: DType::F32,
    op: ReduceOp::Sum,
    quantization: None,
    weight: None,
    reproducible: false,
    resume: false,
    integrity: Integrity::NONE,
    priority: 0,
    deadline_ms: 0,
};
