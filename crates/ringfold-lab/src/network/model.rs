//! What happens to packets between hosts: queues, delays, losses. Pure: no clock, no devices; randomness from a seed.
//!
//! A packet passes its sender's uplink, the path of the pair, and its receiver's downlink. Each has a queue in front of
//! it. Times are nanoseconds since the start.

use super::link::{AccessLink, Firewall, PathSettings};
use super::packet::{Flow, begins_connection, flow, resets};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

/// Nanoseconds since the start.
pub(super) type Nanos = u64;

/// The flows that a firewall remembers.
const FLOWS_MAX: usize = 4096;
/// How long a rule resets the connections that existed before it.
const RESET_DURATION: Nanos = 5_000_000_000;

/// What became of the packets of one direction of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathCounters {
    /// Packets that were sent, whatever became of them.
    pub packets: u64,
    /// Their bytes, with IP headers.
    pub bytes: u64,
    /// Dropped because a queue was full.
    pub overflowed: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the path or a link was down, or a firewall did not let them in.
    pub blocked: u64,
}

/// A rate and the queue in front of it.
#[derive(Debug, Default)]
struct Hop {
    /// Bits per second; unlimited if there is none.
    rate: Option<u64>,
    queue: Nanos,
    free_at: Nanos,
}

impl Hop {
    fn set(&mut self, rate: Option<u64>, queue: Duration) {
        (self.rate, self.queue) = (rate, queue.as_nanos() as Nanos);
        self.free_at = 0;
    }

    /// When a packet has left; `None` if the queue is full.
    fn pass(&mut self, now: Nanos, bytes: usize) -> Option<Nanos> {
        let Some(rate) = self.rate else { return Some(now) };
        let begin = self.free_at.max(now);
        if begin - now > self.queue {
            return None;
        }
        self.free_at = begin + (bytes as u64 * 8 * 1_000_000_000).div_ceil(rate);
        Some(self.free_at)
    }
}

#[derive(Debug, Default)]
struct Path {
    settings: PathSettings,
    is_cut: bool,
    hop: Hop,
    /// Whether the last packet was part of a burst of losses.
    in_burst: bool,
    last_arrival: Nanos,
    counters: PathCounters,
}

/// Resets the TCP connections of a pair that existed when it was made.
#[derive(Debug)]
struct ResetRule {
    pair: [usize; 2],
    /// Only connections with this port at either end.
    port: Option<u16>,
    until: Nanos,
    /// Connections that began later, as both directions name them.
    exempt: HashSet<Flow>,
}

#[derive(Debug, Default)]
struct HostState {
    is_down: bool,
    up: Hop,
    down: Hop,
    firewall: Option<Firewall>,
    /// The flows that the host has begun, as its own packets name them, and when a packet was last seen.
    flows: HashMap<Flow, Nanos>,
}

/// Where a packet is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Path,
    Downlink,
    Arrived,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    at: Nanos,
    /// Keeps the order of packets with equal times.
    serial: u64,
    stage: Stage,
    from: usize,
    to: usize,
    packet: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Model {
    hosts: Vec<HostState>,
    /// By sender and receiver.
    paths: Vec<Path>,
    resets: Vec<ResetRule>,
    events: BinaryHeap<Reverse<Event>>,
    serial: u64,
    random: u64,
}

impl Model {
    pub fn new(hosts: usize, seed: u64) -> Self {
        Self {
            hosts: (0..hosts).map(|_| HostState::default()).collect(),
            paths: (0..hosts * hosts).map(|_| Path::default()).collect(),
            resets: Vec::new(),
            events: BinaryHeap::new(),
            serial: 0,
            random: seed,
        }
    }

    fn path(&mut self, from: usize, to: usize) -> &mut Path {
        let hosts = self.hosts.len();
        &mut self.paths[from * hosts + to]
    }

    pub fn set_path(&mut self, from: usize, to: usize, settings: PathSettings) {
        let path = self.path(from, to);
        path.hop.set(settings.rate, settings.queue);
        path.settings = settings;
    }

    pub fn set_access(&mut self, host: usize, access: AccessLink) {
        let state = &mut self.hosts[host];
        state.up.set(access.up, access.queue);
        state.down.set(access.down, access.queue);
    }

    pub fn set_firewall(&mut self, host: usize, firewall: Option<Firewall>) {
        let state = &mut self.hosts[host];
        (state.firewall, state.flows) = (firewall, HashMap::new());
    }

    pub fn set_down(&mut self, host: usize, is_down: bool) {
        self.hosts[host].is_down = is_down;
    }

    pub fn set_cut(&mut self, from: usize, to: usize, is_cut: bool) {
        self.path(from, to).is_cut = is_cut;
    }

    /// Resets the TCP connections of a pair, or those with this port at either end, with their next packets.
    pub fn reset(&mut self, now: Nanos, pair: [usize; 2], port: Option<u16>) {
        self.resets.push(ResetRule { pair, port, until: now + RESET_DURATION, exempt: HashSet::new() });
    }

    pub fn counters(&mut self, from: usize, to: usize) -> PathCounters {
        self.path(from, to).counters
    }

    /// A packet that a host has sent.
    pub fn send(&mut self, now: Nanos, from: usize, to: usize, packet: Vec<u8>) {
        if from == to || to >= self.hosts.len() {
            return;
        }
        let is_blocked = self.hosts[from].is_down || !self.hosts[from].lets_out(now, &packet);
        let path = self.path(from, to);
        path.counters.packets += 1;
        path.counters.bytes += packet.len() as u64;
        let is_dropped = path.settings.drops_udp && flow(&packet).is_some_and(|flow| flow.is_udp())
            || path.settings.drops_above.is_some_and(|most| packet.len() > most);
        if is_blocked || path.is_cut || is_dropped {
            path.counters.blocked += 1;
            return;
        }
        match self.hosts[from].up.pass(now, packet.len()) {
            Some(at) => self.schedule(at, Stage::Path, from, to, packet),
            None => self.path(from, to).counters.overflowed += 1,
        }
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse(event)| event.at)
    }

    /// The next packet that has arrived by now, and its receiver.
    pub fn poll(&mut self, now: Nanos) -> Option<(usize, Vec<u8>)> {
        loop {
            if self.events.peek().is_none_or(|Reverse(event)| event.at > now) {
                return None;
            }
            let Reverse(event) = self.events.pop()?;
            match event.stage {
                Stage::Path => self.pass_path(event),
                Stage::Downlink => match self.hosts[event.to].down.pass(event.at, event.packet.len()) {
                    Some(at) => self.schedule(at, Stage::Arrived, event.from, event.to, event.packet),
                    None => self.path(event.from, event.to).counters.overflowed += 1,
                },
                Stage::Arrived if self.hosts[event.to].lets_in(event.at, &event.packet) => {
                    return Some((event.to, event.packet));
                }
                Stage::Arrived => self.path(event.from, event.to).counters.blocked += 1,
            }
        }
    }

    fn schedule(&mut self, at: Nanos, stage: Stage, from: usize, to: usize, packet: Vec<u8>) {
        self.serial += 1;
        self.events.push(Reverse(Event { at, serial: self.serial, stage, from, to, packet }));
    }

    fn pass_path(&mut self, event: Event) {
        let Event { at: now, from, to, packet, .. } = event;
        if self.is_reset(now, from, to, &packet) {
            return self.send_resets(now, from, to, &packet);
        }
        let random = [self.random(), self.random(), self.random()];
        let path = self.path(from, to);
        let Some(left) = path.hop.pass(now, packet.len()) else {
            path.counters.overflowed += 1;
            return;
        };
        if path.loses(random[0]) {
            path.counters.lost += 1;
            return;
        }
        let at = path.arrival(left, random[1]);
        if random[2] < path.settings.duplicates {
            self.schedule(at, Stage::Downlink, from, to, packet.clone());
        }
        self.schedule(at, Stage::Downlink, from, to, packet);
    }

    fn is_reset(&mut self, now: Nanos, from: usize, to: usize, packet: &[u8]) -> bool {
        self.resets.retain(|rule| rule.until > now);
        if self.resets.is_empty() {
            return false;
        }
        let Some(flow) = flow(packet).filter(Flow::is_tcp) else { return false };
        let is_new = begins_connection(packet);
        let mut is_reset = false;
        for rule in &mut self.resets {
            let has_port = |port| flow.source.port() == port || flow.destination.port() == port;
            if (rule.pair != [from, to] && rule.pair != [to, from]) || !rule.port.is_none_or(has_port) {
                continue;
            }
            if is_new {
                rule.exempt.extend([flow, flow.reversed()]);
            }
            is_reset |= !rule.exempt.contains(&flow);
        }
        is_reset
    }

    /// Ends the connection of a packet at both ends.
    fn send_resets(&mut self, now: Nanos, from: usize, to: usize, packet: &[u8]) {
        let Some((to_sender, to_receiver)) = resets(packet) else { return };
        let path = self.path(from, to);
        path.counters.blocked += 1;
        let at = path.arrival(now, 0.0);
        self.schedule(at, Stage::Downlink, from, to, to_receiver);
        self.schedule(now, Stage::Arrived, to, from, to_sender);
    }

    /// A number from 0 to below 1 (xorshift64*).
    fn random(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Path {
    /// Whether the next packet is lost. Bursts follow the model of Gilbert: a good and a bad state.
    fn loses(&mut self, random: f64) -> bool {
        let PathSettings { loss, loss_burst, .. } = self.settings;
        if loss <= 0.0 {
            return false;
        }
        let ends = 1.0 / loss_burst.max(1.0);
        let begins = if loss < 1.0 { (loss * ends / (1.0 - loss)).min(1.0) } else { 1.0 };
        self.in_burst = if self.in_burst && loss_burst > 1.0 { random >= ends } else { random < begins };
        // Independent losses need no memory.
        if loss_burst <= 1.0 { random < loss } else { self.in_burst }
    }

    /// When a packet arrives that has left the queue. Jitter changes the distance of packets, not their order.
    fn arrival(&mut self, left: Nanos, random: f64) -> Nanos {
        let jitter = self.settings.jitter.as_nanos() as f64 * random;
        self.last_arrival =
            self.last_arrival.max(left + self.settings.delay.as_nanos() as Nanos + jitter as Nanos);
        self.last_arrival
    }
}

impl HostState {
    /// Whether the firewall lets a packet of the host out. It remembers the flow.
    fn lets_out(&mut self, now: Nanos, packet: &[u8]) -> bool {
        let (Some(firewall), Some(flow)) = (self.firewall, flow(packet)) else { return true };
        if self.flows.len() >= FLOWS_MAX {
            self.flows
                .retain(|_, seen| now.saturating_sub(*seen) <= firewall.forgets_after.as_nanos() as Nanos);
        }
        // A connection that was forgotten would get another port at the NAT, which the other end does not know.
        let is_known = self.knows(now, flow, firewall) || !flow.is_tcp() || begins_connection(packet);
        if is_known && self.flows.len() < FLOWS_MAX {
            self.flows.insert(flow, now);
        }
        is_known
    }

    /// Whether a packet to the host reaches it.
    fn lets_in(&mut self, now: Nanos, packet: &[u8]) -> bool {
        if self.is_down {
            return false;
        }
        let (Some(firewall), Some(flow)) = (self.firewall, flow(packet)) else { return true };
        let is_known = self.knows(now, flow.reversed(), firewall);
        if is_known {
            self.flows.insert(flow.reversed(), now);
        }
        is_known
    }

    fn knows(&self, now: Nanos, flow: Flow, firewall: Firewall) -> bool {
        self.flows
            .get(&flow)
            .is_some_and(|seen| now.saturating_sub(*seen) <= firewall.forgets_after.as_nanos() as Nanos)
    }
}

#[cfg(test)]
mod tests;
