//! The scenario of a seed: peers, programs and faults.

use crate::random_stream::RandomStream;
use ringfold_proto::integrity::Integrity;
use ringfold_proto::recovery::{Recover, RecoverySettings};
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::{Algorithm, TransportCosts, Tuning};
use std::time::Duration;

/// A fault. Peers are chosen among those that live when it occurs.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A new peer joins this group.
    Join(u32),
    /// A peer leaves.
    Leave,
    /// SIGKILL of a peer.
    Kill,
    /// The master evicts a peer.
    Evict,
    /// SIGSTOP of a peer, and SIGCONT after this time.
    Freeze(Duration),
    /// Every event of a peer takes this long, for this time.
    Slow(Duration, Duration),
    /// A cut between two peers for this time, in both directions or one.
    Cut(Duration, bool),
    /// Cuts between a peer and most others for this time, in both directions or one.
    Isolate(Duration, bool),
    /// A cut between a peer and the master for this time, in both directions or one.
    CutMaster(Duration, bool),
    /// A connection between two peers is reset.
    ResetLink,
    /// A peer's connection to the master is reset.
    ResetControl,
    /// All connections of a peer are reset: to the master and to other peers.
    ResetPeer,
    /// The connections of all peers to the master are reset.
    ResetControls,
    /// A master dies, mostly the active one, and restarts after this time.
    KillMaster(Duration),
    /// SIGSTOP of a master, mostly the active one, and SIGCONT after this time.
    FreezeMaster(Duration),
    /// A cut between two masters for this time, in both directions or one.
    CutMasters(Duration, bool),
    /// Cuts between a master and some or most of all others for this time, in both directions or one.
    IsolateMaster(Duration, bool),
    /// Masters and peers are separated into two sides for this time.
    Partition(Duration),
    /// A master dies, and restarts after the first time. It is cut off from all that live now for the second time.
    IsolateRestarted(Duration, Duration),
    /// A connection between two masters is reset.
    ResetMasters,
    /// SIGKILL of all peers, and of all masters if there is a time to restart after. The peers come back from checkpoints of
    /// different age.
    LoseAll(Option<Duration>),
}

/// The behaviour of the programs, the same for all peers of a run.
#[derive(Clone, Debug)]
pub struct ProgramConfig {
    /// Reduces per iteration, each with its own tag.
    pub tags: u64,
    /// Most elements of a buffer.
    pub count_max: u64,
    /// Whether the shared state is synced in each iteration.
    pub syncs: bool,
    /// Whether each iteration asks for pending peers, while reduces run.
    pub asks_pending: bool,
    /// Whether the topology is optimised in each iteration, after the sync.
    pub optimises: bool,
    /// Whether reduces are resumed when a peer is lost.
    pub resumes: bool,
    /// Syncs run beside the reduces of their iteration.
    pub syncs_beside: bool,
    /// Retries of failed reduces before the topology is updated.
    pub retries: u32,
    /// The longest computation between two steps.
    pub compute_max: Duration,
    /// The probability, in thousandths, that a step differs from that of the other peers.
    pub deviations_per_mille: u64,
    /// The probability, in thousandths, that a peer offers a state of another layout. It makes no call for a while when
    /// that is rejected.
    pub other_layouts_per_mille: u64,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub masters: usize,
    /// Whether the only faults are losses of single masters, each after the last takeover has ended.
    pub only_takeovers: bool,
    /// The groups of the initial peers; if peers are ranks of replicas, one replica for each entry.
    pub starters: Vec<u32>,
    /// How many ranks a replica has, if peers are ranks of replicas.
    pub replica_ranks: Option<usize>,
    pub faults: Vec<(Time, Fault)>,
    /// When faults end.
    pub calm_at: Time,
    pub program_config: ProgramConfig,
    pub timing: Timing,
    pub recovery: RecoverySettings,
    pub tuning: Tuning,
    /// What operations check. Bits flip in what they check, before faults end.
    pub integrity: Integrity,
    /// Whether peers report measurements of their links, after which plans change.
    pub measures: bool,
    /// The longest latency of most packets.
    pub latency_max: Duration,
    /// How long a cut lasts before it breaks connections.
    pub break_after: Duration,
    /// How long the executor waits for progress on a link.
    pub stall_after: Duration,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// By when a takeover has ended, after a loss that lasts half of this time.
const TAKEOVER_MAX: Duration = Duration::from_secs(5);

/// The most peers that live at once.
pub const PEERS_MAX: usize = 12;

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "scenario");
        let groups = 1 + random.between(0, 3).min(random.between(0, 3)) as u32;
        let large = random.with_probability(250);
        let groups = if large { 1 } else { groups };
        let world =
            if large { random.between(4, 9) } else { 1 + random.between(0, 6).min(random.between(1, 12)) };
        let mut starters: Vec<_> = (0..world).map(|_| random.between(0, u64::from(groups)) as u32).collect();
        let mut calm_at = Time(random.between(1, 9) * 1_000_000_000);
        let mut faults = faults(&mut random, groups, calm_at);
        // By the number of the seed, so that older seeds keep their meaning.
        match seed % 16 {
            6 => faults = resets(seed, calm_at),
            2 | 10 | 14 => faults.extend(resets(seed, calm_at)),
            _ if has_losses(seed) => faults.extend(losses(seed, calm_at)),
            _ => {}
        }
        let masters = masters(seed);
        let kind = RandomStream::new(seed, "masters").between(0, 6);
        let only_takeovers = masters > 1 && kind == 0;
        match (masters, kind) {
            (1, _) => {}
            (_, 0) => (faults, calm_at) = takeovers(seed),
            (_, 1) => {
                // A partition that is long enough for a takeover, of peers that work on both sides.
                starters.resize(starters.len().max(6), 0);
                let pause = MS(RandomStream::new(seed, "partition").between(2_000, 6_000));
                faults.truncate(2);
                faults.push((Time(1_000_000_000), Fault::Partition(pause)));
                calm_at = calm_at.max(Time(1_000_000_000) + pause);
            }
            (_, 2) => {
                // Peers that join at a master which restarted cut off.
                let mut random = RandomStream::new(seed, "isolation");
                let (from, pause) = (Time(random.between(500_000_000, 2_000_000_000)), MS(4_000));
                faults.truncate(2);
                faults.push((from, Fault::IsolateRestarted(MS(random.between(1, 1_000)), pause)));
                let join = |_| (from + MS(random.between(10, 3_000)), Fault::Join(0));
                faults.extend((0..3).map(join));
                calm_at = calm_at.max(from + pause);
            }
            _ => faults.extend(master_faults(seed, calm_at)),
        }
        faults.sort_by_key(|(at, _)| *at);
        let replica_ranks = replica_ranks(seed);
        starters.truncate(replica_ranks.map_or(usize::MAX, |ranks| PEERS_MAX / ranks - 1));
        let mut scenario = Self {
            seed,
            masters,
            only_takeovers,
            starters,
            replica_ranks,
            faults,
            calm_at,
            // By the number of the seed, so that older seeds keep their meaning.
            program_config: ProgramConfig {
                other_layouts_per_mille: if seed % 8 == 3 { 60 } else { 0 },
                resumes: RandomStream::new(seed, "resumption").with_probability(250),
                syncs_beside: RandomStream::new(seed, "syncs").with_probability(200),
                ..program_config(&mut random, has_losses(seed))
            },
            timing: timing(),
            recovery: recovery(seed),
            tuning: match seed % 8 {
                5 => Tuning { forced: Some(Algorithm::Trees), ..tuning(&mut random) },
                _ => tuning(&mut random),
            },
            integrity: integrity(seed),
            measures: seed % 4 == 1,
            latency_max: Duration::from_micros(random.between(50, 4_000)),
            break_after: MS(1_600),
            stall_after: MS(1_000),
        };
        if only_takeovers {
            let config = &mut scenario.program_config;
            (config.deviations_per_mille, config.other_layouts_per_mille) = (0, 0);
        }
        scenario
    }
}

/// How many masters there are. By the number of the seed, so that older seeds keep their meaning.
fn masters(seed: u64) -> usize {
    if seed % 9 == 5 { 2 + (seed / 9 % 2) as usize } else { 1 }
}

/// In a fifth of the seeds peers are ranks of replicas.
fn replica_ranks(seed: u64) -> Option<usize> {
    let mut random = RandomStream::new(seed, "replicas");
    random.with_probability(200).then(|| random.between(2, 4) as usize)
}

/// In a quarter of the seeds payloads, results or both are checked.
fn integrity(seed: u64) -> Integrity {
    let mut random = RandomStream::new(seed, "integrity");
    let bits = if random.with_probability(250) { random.between(1, 4) } else { 0 };
    Integrity::from_bits(bits as u8).unwrap_or_default()
}

fn timing() -> Timing {
    Timing {
        heartbeat: MS(100),
        silence_max: MS(600),
        suspect_max: MS(250),
        master_silence_max: MS(1_000),
        master_return_max: MS(8_000),
        redial: MS(40),
        restore_grace: MS(1_500),
        restore_window: MS(20_000),
        establish_max: MS(3_000),
        wait_max: MS(5_000),
        answer_grace: MS(12_000),
        announce_after: MS(1),
        probe_max: MS(300),
        tour_max: MS(300),
        appraise_every: MS(20),
        edge_distrust: MS(2_500),
        relink_max: MS(800),
        warn_after: MS(500),
    }
}

fn tuning(random: &mut RandomStream) -> Tuning {
    let algorithms = [
        None,
        Some(Algorithm::Ring),
        Some(Algorithm::Direct),
        Some(Algorithm::OneShot),
        Some(Algorithm::Halving),
        Some(Algorithm::Doubling),
    ];
    Tuning {
        chunk_bytes: 16 * random.between(1, 5) as u32,
        window_slots: random.between(1, 5) as u16,
        eager_slots: [1, 2, 3, 20][random.between(0, 4) as usize],
        tcp: costs(random),
        shared: costs(random),
        forced: algorithms[random.between(0, algorithms.len() as u64) as usize],
        ..Tuning::default()
    }
}

/// Random costs, so that every algorithm is the cheapest in some run although messages are small.
fn costs(random: &mut RandomStream) -> TransportCosts {
    TransportCosts {
        hop_ns: random.between(0, 100) as u32,
        frame_ns: random.between(0, 100) as u32,
        sent_ns_per_kib: random.between(0, 3000) as u32,
        reduced_ns_per_kib: random.between(0, 3000) as u32,
        beside_ring_percent: random.between(50, 300) as u16,
    }
}

fn program_config(random: &mut RandomStream, always_syncs: bool) -> ProgramConfig {
    ProgramConfig {
        tags: random.between(1, 5),
        count_max: random.between(0, 40),
        syncs: random.with_probability(700) || always_syncs,
        asks_pending: random.with_probability(400),
        optimises: random.with_probability(200),
        syncs_beside: false,
        resumes: false,
        retries: random.between(0, 4) as u32,
        compute_max: MS(random.between(4, 200)),
        deviations_per_mille: if random.with_probability(250) { random.between(1, 60) } else { 0 },
        other_layouts_per_mille: 0,
    }
}

/// Resets of control connections in all phases, some with the links of the peer.
fn resets(seed: u64, calm_at: Time) -> Vec<(Time, Fault)> {
    let mut random = RandomStream::new(seed, "resets");
    let count = random.between(1, 4 + calm_at.0 / 200_000_000);
    let reset = |_| {
        let at = Time(random.between(0, calm_at.0));
        let fault = match random.between(0, 8) {
            0 => Fault::ResetPeer,
            1 | 2 => Fault::ResetControls,
            3 => Fault::Join(0),
            4 => Fault::Kill,
            _ => Fault::ResetControl,
        };
        (at, fault)
    };
    (0..count).map(reset).collect()
}

/// Whether all peers of this run are lost at once.
fn has_losses(seed: u64) -> bool {
    seed % 8 == 4
}

fn recovery(seed: u64) -> RecoverySettings {
    let policy = match seed % 32 {
        0 | 8 | 16 | 24 => Recover::Manual,
        28 => Recover::Majority,
        _ => Recover::Newest,
    };
    RecoverySettings { policy, after: MS(1_500), min: (seed % 32 == 20).then_some(2) }
}

/// Losses of all peers, some with the masters.
fn losses(seed: u64, calm_at: Time) -> Vec<(Time, Fault)> {
    let mut random = RandomStream::new(seed, "losses");
    let count = random.between(1, 3);
    let loss = |_| {
        let at = Time(random.between(calm_at.0 / 4, calm_at.0));
        let master = random.with_probability(400).then(|| MS(random.between(1, 2_500)));
        (at, Fault::LoseAll(master))
    };
    (0..count).map(loss).collect()
}

/// Losses of single masters, each after the last takeover has ended; and the end of the faults.
fn takeovers(seed: u64) -> (Vec<(Time, Fault)>, Time) {
    let mut random = RandomStream::new(seed, "takeovers");
    let mut at = Time(0);
    let mut loss = |_| {
        at = at + TAKEOVER_MAX + MS(random.between(0, 1_500));
        let pause = MS(random.between(1, 2_500));
        (at, if random.with_probability(500) { Fault::KillMaster(pause) } else { Fault::FreezeMaster(pause) })
    };
    let faults: Vec<_> = (0..1 + seed / 9 % 3).map(&mut loss).collect();
    (faults, at + TAKEOVER_MAX)
}

/// Faults of masters, and partitions.
fn master_faults(seed: u64, calm_at: Time) -> Vec<(Time, Fault)> {
    let mut random = RandomStream::new(seed, "master faults");
    let count = random.between(1, 4 + calm_at.0 / 600_000_000);
    let fault = |_| {
        let at = Time(random.between(0, calm_at.0));
        let pause = MS(if random.with_probability(400) {
            random.between(1, 700)
        } else {
            random.between(700, 3_500)
        });
        let both = random.with_probability(500);
        let fault = match random.between(0, 10) {
            0..3 => Fault::KillMaster(MS(random.between(1, 2_500))),
            3 | 4 => Fault::FreezeMaster(pause),
            5 => Fault::CutMasters(pause, both),
            6 => Fault::IsolateMaster(pause, both),
            7 => Fault::Partition(pause),
            8 => Fault::CutMaster(pause, both),
            _ => Fault::ResetMasters,
        };
        (at, fault)
    };
    (0..count).map(fault).collect()
}

fn faults(random: &mut RandomStream, groups: u32, calm_at: Time) -> Vec<(Time, Fault)> {
    let count = if random.with_probability(150) { 0 } else { random.between(1, 4 + calm_at.0 / 400_000_000) };
    // Each seed weights the kinds of faults differently; some do not occur.
    let weights: Vec<u64> =
        (0..12).map(|_| random.between(0, 100) * u64::from(random.with_probability(600))).collect();
    let mut faults = Vec::new();
    for _ in 0..count {
        let at = Time(random.between(0, calm_at.0));
        let sum: u64 = weights.iter().sum();
        let mut draw = random.between(0, sum.max(1));
        let kind = weights.iter().position(|w| {
            let hit = draw < *w;
            draw = draw.saturating_sub(*w);
            hit
        });
        let pause = MS(if random.with_probability(500) {
            random.between(1, 300)
        } else {
            random.between(300, 3_500)
        });
        let fault = match kind.unwrap_or(0) {
            0 => Fault::Join(random.between(0, u64::from(groups)) as u32),
            1 => Fault::Leave,
            2 => Fault::Kill,
            3 => Fault::Evict,
            4 => Fault::Freeze(pause),
            5 => Fault::Slow(MS(random.between(1, 40)), pause),
            6 => Fault::Cut(pause, random.with_probability(500)),
            7 => Fault::CutMaster(pause, random.with_probability(500)),
            8 => Fault::ResetLink,
            9 => Fault::ResetControl,
            10 => Fault::Isolate(pause, random.with_probability(500)),
            _ => Fault::KillMaster(MS(random.between(1, 2_500))),
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
