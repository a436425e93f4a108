//! What a seed stands for: who takes part, what they do, and what goes wrong when.

use crate::chance::Chance;
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use ringfold_proto::tuning::{Algorithm, TransportCosts, Tuning};
use std::time::Duration;

/// Something that happens to the run. Peers are chosen among those alive when it happens.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A process starts and wants to join this group.
    Join(u32),
    /// A peer says goodbye.
    Leave,
    /// kill -9.
    Kill,
    /// The master puts a peer out.
    Kick,
    /// SIGSTOP, and SIGCONT after a while.
    Freeze(Duration),
    /// A peer takes this long for everything, for a while.
    Slow(Duration, Duration),
    /// Nothing passes from one peer to another, for a while; both ways or one.
    Cut(Duration, bool),
    /// Nothing passes between a peer and most other peers, for a while; both ways or one.
    Isolate(Duration, bool),
    /// Nothing passes between a peer and the master, for a while; both ways or one.
    CutMaster(Duration, bool),
    /// A connection between two peers is reset.
    ResetLink,
    /// A peer's connection to the master is reset.
    ResetControl,
    /// The master dies, and another life of it starts after a while.
    KillMaster(Duration),
}

/// How the peers' programs behave; the same for all peers of a run, as with real programs.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Tags reduced in each iteration.
    pub tags: u64,
    /// Elements of a buffer at most.
    pub count_max: u64,
    /// Whether the shared state is synced in each iteration.
    pub syncs: bool,
    /// Whether each iteration asks for pending peers, while reduces run.
    pub asks_pending: bool,
    /// Whether the topology is optimised in each iteration, after the sync.
    pub optimises: bool,
    /// How often a failed reduce is tried again before the topology is updated.
    pub retries: u32,
    /// The longest pause between two steps.
    pub think: Duration,
    /// In so many of a thousand steps a peer does something else than the others.
    pub strays_per_mille: u64,
    /// In so many of a thousand syncs a peer offers a state of another layout, and makes no call for a while when it is
    /// rejected.
    pub odd_layouts_per_mille: u64,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Groups of the peers that are there from the start.
    pub starters: Vec<u32>,
    /// What goes wrong.
    pub faults: Vec<(Time, Fault)>,
    /// When things stop going wrong.
    pub calm_at: Time,
    /// How the peers behave.
    pub habits: Habits,
    /// Deadlines and intervals.
    pub timing: Timing,
    /// What steers plans.
    pub tuning: Tuning,
    /// The longest usual delay of a packet.
    pub latency_max: Duration,
    /// How long a way may be cut before its connections break.
    pub network_patience: Duration,
    /// How long the executor looks at a link that owes it progress.
    pub stall_after: Duration,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// At most so many peers live at once.
pub const PEERS_MAX: usize = 12;

impl Scenario {
    /// What the seed stands for.
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed, "scenario");
        let groups = 1 + chance.between(0, 3).min(chance.between(0, 3)) as u32;
        let large = chance.per_mille(250);
        let groups = if large { 1 } else { groups };
        let world =
            if large { chance.between(4, 9) } else { 1 + chance.between(0, 6).min(chance.between(1, 12)) };
        let starters = (0..world).map(|_| chance.between(0, u64::from(groups)) as u32).collect();
        let calm_at = Time(chance.between(1, 9) * 1_000_000_000);
        let faults = faults(&mut chance, groups, calm_at);
        Self {
            seed,
            starters,
            faults,
            calm_at,
            // By the number, so that older seeds keep their meaning.
            habits: Habits {
                odd_layouts_per_mille: if seed % 8 == 3 { 60 } else { 0 },
                ..habits(&mut chance)
            },
            timing: timing(),
            tuning: tuning(&mut chance),
            latency_max: Duration::from_micros(chance.between(50, 4_000)),
            network_patience: MS(1_600),
            stall_after: MS(1_000),
        }
    }
}

fn timing() -> Timing {
    Timing {
        heartbeat: MS(100),
        silence_max: MS(600),
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
        edge_distrust: MS(2_500),
        relink_max: MS(800),
        warn_after: MS(500),
    }
}

fn tuning(chance: &mut Chance) -> Tuning {
    let algorithms = [
        None,
        Some(Algorithm::Ring),
        Some(Algorithm::Direct),
        Some(Algorithm::OneShot),
        Some(Algorithm::Halving),
    ];
    Tuning {
        chunk_bytes: 16 * chance.between(1, 5) as u32,
        window_slots: chance.between(1, 5) as u16,
        eager_slots: chance.between(1, 5) as u16,
        tcp: prices(chance),
        shared: prices(chance),
        forced: algorithms[chance.between(0, 5) as usize],
        ..Tuning::default()
    }
}

/// By chance, so that every algorithm is the cheapest somewhere although messages are small.
fn prices(chance: &mut Chance) -> TransportCosts {
    TransportCosts {
        hop_ns: chance.between(0, 100) as u32,
        frame_ns: chance.between(0, 100) as u32,
        sent_ns_per_kib: chance.between(0, 3000) as u32,
        reduced_ns_per_kib: chance.between(0, 3000) as u32,
        beside_ring_percent: chance.between(50, 300) as u16,
    }
}

fn habits(chance: &mut Chance) -> Habits {
    Habits {
        tags: chance.between(1, 5),
        count_max: chance.between(0, 40),
        syncs: chance.per_mille(700),
        asks_pending: chance.per_mille(400),
        optimises: chance.per_mille(200),
        retries: chance.between(0, 4) as u32,
        think: MS(chance.between(4, 200)),
        strays_per_mille: if chance.per_mille(250) { chance.between(1, 60) } else { 0 },
        odd_layouts_per_mille: 0,
    }
}

fn faults(chance: &mut Chance, groups: u32, calm_at: Time) -> Vec<(Time, Fault)> {
    let many = if chance.per_mille(150) { 0 } else { chance.between(1, 4 + calm_at.0 / 400_000_000) };
    // A seed has a temper: some sorts of trouble are frequent in it, others don't occur.
    let temper: Vec<u64> =
        (0..12).map(|_| chance.between(0, 100) * u64::from(chance.per_mille(600))).collect();
    let mut faults = Vec::new();
    for _ in 0..many {
        let at = Time(chance.between(0, calm_at.0));
        let sum: u64 = temper.iter().sum();
        let mut draw = chance.between(0, sum.max(1));
        let kind = temper.iter().position(|w| {
            let hit = draw < *w;
            draw = draw.saturating_sub(*w);
            hit
        });
        let pause =
            MS(if chance.per_mille(500) { chance.between(1, 300) } else { chance.between(300, 3_500) });
        let fault = match kind.unwrap_or(0) {
            0 => Fault::Join(chance.between(0, u64::from(groups)) as u32),
            1 => Fault::Leave,
            2 => Fault::Kill,
            3 => Fault::Kick,
            4 => Fault::Freeze(pause),
            5 => Fault::Slow(MS(chance.between(1, 40)), pause),
            6 => Fault::Cut(pause, chance.per_mille(500)),
            7 => Fault::CutMaster(pause, chance.per_mille(500)),
            8 => Fault::ResetLink,
            9 => Fault::ResetControl,
            10 => Fault::Isolate(pause, chance.per_mille(500)),
            _ => Fault::KillMaster(MS(chance.between(1, 2_500))),
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
