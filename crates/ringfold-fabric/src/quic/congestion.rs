//! Congestion control for long links: packets are sent at the measured bandwidth of the path.
//!
//! Losses do not reduce the rate unless they are many: on long links most are random, and a sender that halves its rate
//! for each leaves the link empty. Every few round trips a little more is sent for one round trip; if more arrives, the
//! bandwidth is greater than was known, and else the queue that this made is emptied. The window only bounds what is in
//! flight when acknowledgements are late. Nothing shrinks while the application is idle.

use core::sync::atomic::{AtomicU64, Ordering};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The window in packets before anything is known.
const INITIAL_PACKETS: u64 = 32;
/// The packets that one acknowledgement covers.
pub(super) const PACKETS_PER_ACK: u32 = 12;
/// The smallest window in packets: of less the other end would acknowledge nothing before its timer, and the bandwidth would
/// seem as small as the window.
const PACKETS_MIN: u64 = INITIAL_PACKETS;
/// The window, relative to what the path holds. Acknowledgements may take twice as long as the least round trip, in
/// queues of the way back, before it limits the rate.
const WINDOW_GAIN: f64 = 2.0;
/// The rate while more bandwidth is looked for, the same after some was found, and while the queue that this made is emptied.
const PROBE_GAIN: f64 = 1.25;
const PROBE_GAIN_AGAIN: f64 = 2.0;
const SETTLE_GAIN: f64 = 0.6;
/// Round trips at the measured bandwidth, between looking for more.
const CRUISE_ROUND_TRIPS: f64 = 6.0;
/// Most round trips in which a queue is emptied, after a first probe, and after others and the start. What is in flight may be in a queue of
/// the way back.
const SETTLE_ROUND_TRIPS: f64 = 1.0;
const SETTLE_ROUND_TRIPS_MAX: f64 = 2.5;
/// What a probe found is known after so many round trips.
const PROBE_ROUND_TRIPS: f64 = 2.25;
/// The share of what the path holds that is in flight at least while the application sends as much as it may.
const FULL: f64 = 0.75;
/// While the least round trip is measured again.
const DRAIN_GAIN: f64 = 0.6;
/// Bandwidth counts for this many round trips.
const BANDWIDTH_ROUNDS: u64 = 10;
/// The least round trip is measured again after this time without a sample as low.
const ROUND_TRIP_AGE: Duration = Duration::from_secs(10);
/// Round trips that are longer than the least one by this factor have been in a queue.
const QUEUED: f64 = 1.25;
/// Round trips up to this factor above the least one confirm it.
const SAME_ROUND_TRIP: f64 = 1.03;
/// The start is over when the bandwidth has not grown by this factor in so many round trips.
const GROWTH: f64 = 1.25;
const ROUNDS_WITHOUT_GROWTH: u32 = 3;
/// The start is also over when round trips are longer than the least one by this factor and time.
const QUEUE_GROWTH: f64 = 1.1;
const JITTER: Duration = Duration::from_millis(4);
/// In so many samples in a row, of at least so many packets in flight.
const QUEUE_SAMPLES: u32 = 4;
const QUEUE_PACKETS_MIN: u64 = 64;
/// The start begins again when the bandwidth has risen by this factor in each of so many probes.
const RISE: f64 = 1.05;
const PROBES_RISING: u32 = 3;
/// The share of a round's bytes beyond which losses mean congestion.
const LOSS_MAX: f64 = 0.22;
/// The same during the start, in which a queue that overflows loses much at once.
const LOSS_MAX_AT_START: f64 = 0.04;
/// The part of the bandwidth that is kept after a round with many losses.
const LOSS_FACTOR: f64 = 0.85;

/// What a controller reports; rates in bytes per second. 0 means unknown.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// The bandwidth of the path.
    pub bandwidth: AtomicU64,
    /// How fast packets should be sent.
    pub pace: AtomicU64,
    /// Bytes in flight.
    pub in_flight: AtomicU64,
    /// Bytes that were lost so far.
    pub lost: AtomicU64,
}

/// Builds the controller of a connection.
#[derive(Clone, Debug)]
pub(super) struct ModelFactory {
    pub rates: Arc<Rates>,
}

impl ControllerFactory for ModelFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Model::new(now, current_mtu, self.rates.clone()))
    }
}

/// What was known when something was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// [`Model::delivered`], and the other two.
    delivered: u64,
    delivered_at: Instant,
    delivered_sent: Instant,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// The window doubles in each round trip, until the bandwidth does not grow any more.
    Start,
    /// More is sent than the path seems to carry.
    Probe,
    /// Less is sent, until the queue is empty.
    Settle,
    Cruise,
}

/// The controller of one connection.
#[derive(Clone, Debug)]
pub(super) struct Model {
    mtu: u64,
    window: u64,
    phase: Phase,
    phase_began: Instant,
    /// Bytes that were acknowledged.
    delivered: u64,
    /// When the last bytes were acknowledged, and when the newest of them were sent.
    delivered_at: Instant,
    delivered_sent: Instant,
    sent: VecDeque<Sent>,
    /// The newest packet of the batch of acknowledgements: when it was sent.
    newest: Option<Instant>,
    /// The bytes of the batch.
    batch: u64,
    /// Bytes that were sent and neither acknowledged nor lost, as of the last acknowledgement, and what was sent since.
    in_flight: u64,
    /// Bytes per second: the greatest samples, the newest last, with the round of each.
    bandwidth: VecDeque<(u64, f64)>,
    round_trip: Duration,
    round_trip_at: Instant,
    /// Until when the window is small, to measure the round trip; and the least one since.
    drain: Option<(Instant, Duration)>,
    round: u64,
    /// The round ends when what is sent after this time is acknowledged.
    round_began: Instant,
    round_delivered: u64,
    round_lost: u64,
    /// Round trips in a row that were longer than without a queue.
    late: u32,
    /// Whether the application has filled the window in this round.
    is_round_full: bool,
    /// The bandwidth when it last grew during the start, and how many rounds ago.
    growth: (f64, u32),
    /// When the last probe began, if its result is not known; the bandwidth then, and how many probes in a row have found more.
    probe: (Option<Instant>, f64, u32),
    rates: Arc<Rates>,
}

impl Model {
    fn new(now: Instant, mtu: u16, rates: Arc<Rates>) -> Self {
        Self {
            mtu: u64::from(mtu),
            window: INITIAL_PACKETS * u64::from(mtu),
            phase: Phase::Start,
            phase_began: now,
            delivered: 0,
            delivered_at: now,
            delivered_sent: now,
            sent: VecDeque::new(),
            newest: None,
            batch: 0,
            in_flight: 0,
            bandwidth: VecDeque::new(),
            round_trip: Duration::MAX,
            round_trip_at: now,
            drain: None,
            round: 0,
            round_began: now,
            round_delivered: 0,
            round_lost: 0,
            late: 0,
            is_round_full: false,
            growth: (0.0, 0),
            probe: (None, 0.0, 0),
            rates,
        }
    }

    fn bandwidth(&self) -> f64 {
        self.bandwidth.front().map_or(0.0, |(_, bandwidth)| *bandwidth)
    }

    /// What was known when a packet was sent. Older entries are dropped.
    fn sent_before(&mut self, at: Instant) -> Option<Sent> {
        while self.sent.get(1).is_some_and(|sent| sent.at <= at) {
            self.sent.pop_front();
        }
        self.sent.front().filter(|sent| sent.at <= at).copied()
    }

    /// Adds a sample to the maximum over the last rounds.
    fn add_bandwidth(&mut self, sample: f64, round_trip: Duration, is_full: bool) {
        // A queue means that the path is full: acknowledgements only come faster than before.
        let has_queue = self.phase != Phase::Start && round_trip > self.round_trip.mul_f64(QUEUED);
        let sample = if has_queue { sample.min(self.bandwidth()) } else { sample };
        // Less was sent than could have been: the sample says only that the path carries at least so much.
        if !is_full && sample < self.bandwidth() {
            return;
        }
        while self.bandwidth.back().is_some_and(|(_, last)| *last <= sample) {
            self.bandwidth.pop_back();
        }
        self.bandwidth.push_back((self.round, sample));
    }

    fn add_round_trip(&mut self, now: Instant, sample: Duration, is_much: bool) {
        let is_late = is_much
            && self.round_trip < Duration::MAX
            && sample > self.round_trip.mul_f64(QUEUE_GROWTH) + JITTER;
        self.late = if is_late { self.late + 1 } else { 0 };
        // A queue has begun to grow: the path is full. A single acknowledgement may be late for other reasons.
        if self.phase == Phase::Start && self.late >= QUEUE_SAMPLES {
            self.enter(now, Phase::Settle);
        }
        if let Some((until, least)) = &mut self.drain {
            *least = sample.min(*least);
            if now >= *until {
                (self.round_trip, self.round_trip_at, self.drain) = (*least, now, None);
            }
        }
        if sample <= self.round_trip {
            (self.round_trip, self.round_trip_at) = (sample, now);
        } else if sample <= self.round_trip.mul_f64(SAME_ROUND_TRIP) {
            // As low as it can be expected to be measured again.
            self.round_trip_at = now;
        } else if self.drain.is_none()
            && now - self.round_trip_at > ROUND_TRIP_AGE
            && self.phase != Phase::Start
        {
            self.drain = Some((now + 2 * sample, Duration::MAX));
        }
    }

    fn enter(&mut self, now: Instant, phase: Phase) {
        (self.phase, self.phase_began) = (phase, now);
        match phase {
            Phase::Start => {
                (self.growth, self.late, self.probe) = ((self.bandwidth(), 0), 0, (None, 0.0, 0));
            }
            Phase::Probe => (self.probe.0, self.probe.1) = (Some(now), self.bandwidth()),
            Phase::Settle | Phase::Cruise => {}
        }
    }

    /// What the path holds without a queue.
    fn path_bytes(&self) -> f64 {
        self.bandwidth() * self.round_trip.as_secs_f64()
    }

    /// Goes on to the next phase when it is time.
    fn advance(&mut self, now: Instant) {
        let round_trip = self.round_trip.as_secs_f64();
        let round_trips = |since: Instant| (now - since).as_secs_f64() / round_trip;
        let after_start = self.probe.0.is_none();
        let has_much = after_start || self.probe.2 > 0;
        let settles = if has_much { SETTLE_ROUND_TRIPS_MAX } else { SETTLE_ROUND_TRIPS };
        match self.phase {
            Phase::Probe if round_trips(self.phase_began) >= 1.0 => self.enter(now, Phase::Settle),
            Phase::Settle
                if self.in_flight as f64 <= self.path_bytes() + self.unacknowledged() as f64
                    || round_trips(self.phase_began) >= settles =>
            {
                // The start may have ended too early.
                self.enter(now, if after_start { Phase::Probe } else { Phase::Cruise });
            }
            Phase::Cruise if round_trips(self.phase_began) >= CRUISE_ROUND_TRIPS => {
                self.enter(now, Phase::Probe);
            }
            _ => {}
        }
        if let (Some(began), before, found) = self.probe
            && self.phase == Phase::Cruise
            && round_trips(began) >= PROBE_ROUND_TRIPS
        {
            let found = if self.bandwidth() > before * RISE { found + 1 } else { 0 };
            self.probe = (None, before, found);
            // Much more may be free than was known.
            match found {
                0 => {}
                PROBES_RISING.. => self.enter(now, Phase::Start),
                _ => self.enter(now, Phase::Probe),
            }
        }
    }

    /// A round trip is over.
    fn end_round(&mut self, now: Instant) {
        let is_full = core::mem::take(&mut self.is_round_full);
        // Of rounds in which little is sent nothing is learnt.
        self.round += u64::from(is_full);
        let delivered = self.delivered - self.round_delivered;
        let lost = self.round_lost as f64 / (delivered + self.round_lost).max(1) as f64;
        if self.phase == Phase::Start {
            let (before, rounds) = self.growth;
            if self.bandwidth() >= before * GROWTH {
                self.growth = (self.bandwidth(), 0);
            } else if is_full {
                self.growth = (before, rounds + 1);
            }
            if self.growth.1 >= ROUNDS_WITHOUT_GROWTH || is_full && lost > LOSS_MAX_AT_START {
                self.enter(now, Phase::Settle);
            }
        } else {
            let oldest = self.round.saturating_sub(BANDWIDTH_ROUNDS);
            while is_full
                && self.bandwidth.len() > 1
                && self.bandwidth.front().is_some_and(|(at, _)| *at < oldest)
            {
                self.bandwidth.pop_front();
            }
            if is_full && lost > LOSS_MAX {
                self.bandwidth.iter_mut().for_each(|(_, bandwidth)| *bandwidth *= LOSS_FACTOR);
            }
        }
        // During the start, and while the application sends little, the path may carry more.
        if is_full && self.phase != Phase::Start {
            self.rates.bandwidth.store(self.bandwidth() as u64, Ordering::Relaxed);
        }
        (self.round_began, self.round_delivered, self.round_lost) = (now, self.delivered, 0);
    }

    /// A packet has arrived.
    fn acknowledge(&mut self, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.batch += bytes;
        self.newest = self.newest.max(Some(sent));
    }

    /// What waits for the next acknowledgement, and is not on the path any more.
    fn unacknowledged(&self) -> u64 {
        2 * u64::from(PACKETS_PER_ACK) * self.mtu
    }

    fn set_window(&mut self, is_full: bool) {
        let gain = if self.drain.is_some() { DRAIN_GAIN } else { WINDOW_GAIN };
        let window = ((gain * self.path_bytes()) as u64 + self.unacknowledged()).max(PACKETS_MIN * self.mtu);
        // An application that sends little does not show that the path carries little.
        self.window = if is_full || self.drain.is_some() { window } else { self.window.max(window) };
    }

    fn set_pace(&self) {
        let gain = match self.phase {
            // The window limits what is sent.
            Phase::Start => 0.0,
            Phase::Probe if self.probe.2 == 0 => PROBE_GAIN,
            Phase::Probe => PROBE_GAIN_AGAIN,
            Phase::Settle => SETTLE_GAIN,
            Phase::Cruise => 1.0,
        };
        let least = (PACKETS_MIN * self.mtu) as f64 / self.round_trip.as_secs_f64();
        let pace = if gain > 0.0 { (gain * self.bandwidth()).max(least) } else { 0.0 };
        self.rates.pace.store(pace as u64, Ordering::Relaxed);
    }
}

impl Controller for Model {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        if self.in_flight == 0 {
            (self.delivered_at, self.delivered_sent) = (now, now);
        }
        self.in_flight += bytes;
        self.rates.in_flight.store(self.in_flight, Ordering::Relaxed);
        if self.sent.back().is_none_or(|sent| sent.at < now) {
            let Self { delivered, delivered_at, delivered_sent, .. } = *self;
            self.sent.push_back(Sent { at: now, delivered, delivered_at, delivered_sent });
        }
    }

    fn on_ack(
        &mut self,
        _now: Instant,
        sent: Instant,
        bytes: u64,
        _is_app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.acknowledge(sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, is_app_limited: bool, _largest: Option<u64>) {
        let Some(sent) = self.newest.take() else { return };
        let batch = core::mem::take(&mut self.batch);
        self.in_flight = in_flight;
        self.rates.in_flight.store(in_flight, Ordering::Relaxed);
        let held = in_flight + batch;
        let is_full = !is_app_limited
            && match self.phase {
                Phase::Start => 2 * held >= self.window,
                _ => held as f64 >= FULL * self.path_bytes(),
            };
        self.is_round_full |= is_full;
        if self.phase == Phase::Start {
            // No more than twice what was in flight: an application that sends little proves little.
            self.window = self.window.max((self.window + batch).min(2 * held));
        }
        let elapsed = now.saturating_duration_since(sent);
        if elapsed.is_zero() {
            return;
        }
        // What an application sends may be less than the window, and more than the path holds.
        let is_much = held as f64 >= (FULL * self.path_bytes()).max((QUEUE_PACKETS_MIN * self.mtu) as f64);
        self.add_round_trip(now, elapsed, is_full || is_much);
        if let Some(before) = self.sent_before(sent) {
            // Acknowledgements that were held up on their way come faster than the packets arrived, but not faster
            // than the packets were sent.
            let took = (now - before.delivered_at).max(sent.saturating_duration_since(before.delivered_sent));
            self.add_bandwidth(
                (self.delivered - before.delivered) as f64 / took.as_secs_f64(),
                elapsed,
                is_full,
            );
        }
        (self.delivered_at, self.delivered_sent) = (now, sent);
        if sent >= self.round_began {
            self.end_round(now);
        }
        self.advance(now);
        if self.phase != Phase::Start {
            self.set_window(is_full);
        }
        self.set_pace();
    }

    fn on_congestion_event(&mut self, now: Instant, _sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.round_lost += lost_bytes;
        self.rates.lost.fetch_add(lost_bytes, Ordering::Relaxed);
        if is_persistent {
            // Nothing arrives any more: begin again.
            self.bandwidth.clear();
            self.enter(now, Phase::Start);
            self.set_pace();
            self.window = INITIAL_PACKETS * self.mtu;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.window = self.window.max(PACKETS_MIN * self.mtu);
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
