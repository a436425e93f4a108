//! Congestion control for long links: a window of the measured bandwidth times the least round trip.
//!
//! Losses do not reduce the window unless they are many: on long links most are random, and a sender that halves its rate
//! for each leaves the link empty. The window is a little larger than what the path holds, so a standing queue is small,
//! and more bandwidth is noticed and used within a few round trips. It does not shrink while the application is idle.

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
/// The window, relative to what the path holds.
const GAIN: f64 = 1.2;
/// While the least round trip is measured again.
const DRAIN_GAIN: f64 = 0.6;
/// Bandwidth counts for this many round trips.
const BANDWIDTH_ROUNDS: u64 = 10;
/// The least round trip is measured again after this time without a sample as low.
const ROUND_TRIP_AGE: Duration = Duration::from_secs(10);
/// Round trips up to this factor above the least one confirm it.
const SAME_ROUND_TRIP: f64 = 1.03;
/// The start is over when the bandwidth has not grown by this factor in so many round trips.
const GROWTH: f64 = 1.25;
const ROUNDS_WITHOUT_GROWTH: u32 = 3;
/// The start is also over when round trips are longer than the least one by this factor and time.
const QUEUE_GROWTH: f64 = 1.1;
const JITTER: Duration = Duration::from_millis(4);
/// The start begins again when the bandwidth has risen by this factor in each of so many round trips.
const RISE: f64 = 1.1;
const ROUNDS_RISING: u32 = 2;
/// The share of a round's bytes beyond which losses mean congestion.
const LOSS_MAX: f64 = 0.15;
/// The same during the start, in which a queue that overflows loses much at once.
const LOSS_MAX_AT_START: f64 = 0.04;
/// The part of the bandwidth that is kept after a round with many losses.
const LOSS_FACTOR: f64 = 0.85;

/// Builds the controller of a connection.
#[derive(Clone, Debug)]
pub(super) struct ModelFactory {
    /// Where the controller reports the bandwidth of the path, in bytes per second.
    pub bandwidth: Arc<AtomicU64>,
}

impl ControllerFactory for ModelFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Model::new(now, current_mtu, self.bandwidth.clone()))
    }
}

/// The controller of one connection.
#[derive(Clone, Debug)]
pub(super) struct Model {
    mtu: u64,
    window: u64,
    is_starting: bool,
    /// Bytes that were acknowledged.
    delivered: u64,
    /// When something was sent, and `delivered` at that time.
    sent: VecDeque<(Instant, u64)>,
    /// The newest packet of the batch of acknowledgements: when it was sent.
    newest: Option<Instant>,
    /// The bytes of the batch.
    batch: u64,
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
    /// Whether the application has filled the window in this round.
    is_round_full: bool,
    /// The bandwidth when it last grew during the start, and how many rounds ago. After the start: the bandwidth of the
    /// last round, and for how many rounds it has risen.
    growth: (f64, u32),
    reported: Arc<AtomicU64>,
}

impl Model {
    fn new(now: Instant, mtu: u16, reported: Arc<AtomicU64>) -> Self {
        Self {
            mtu: u64::from(mtu),
            window: INITIAL_PACKETS * u64::from(mtu),
            is_starting: true,
            delivered: 0,
            sent: VecDeque::new(),
            newest: None,
            batch: 0,
            bandwidth: VecDeque::new(),
            round_trip: Duration::MAX,
            round_trip_at: now,
            drain: None,
            round: 0,
            round_began: now,
            round_delivered: 0,
            round_lost: 0,
            is_round_full: false,
            growth: (0.0, 0),
            reported,
        }
    }

    fn bandwidth(&self) -> f64 {
        self.bandwidth.front().map_or(0.0, |(_, bandwidth)| *bandwidth)
    }

    /// `delivered` when a packet was sent. Older entries are dropped.
    fn delivered_before(&mut self, sent: Instant) -> Option<u64> {
        while self.sent.get(1).is_some_and(|(at, _)| *at <= sent) {
            self.sent.pop_front();
        }
        self.sent.front().filter(|(at, _)| *at <= sent).map(|(_, delivered)| *delivered)
    }

    /// Adds a sample to the maximum over the last rounds.
    fn add_bandwidth(&mut self, sample: f64, is_full: bool) {
        // Less was sent than could have been: the sample says only that the path carries at least so much.
        if !is_full && sample < self.bandwidth() {
            return;
        }
        while self.bandwidth.back().is_some_and(|(_, last)| *last <= sample) {
            self.bandwidth.pop_back();
        }
        self.bandwidth.push_back((self.round, sample));
    }

    fn add_round_trip(&mut self, now: Instant, sample: Duration, is_full: bool) {
        // A queue has begun to grow: the path is full.
        if is_full
            && self.is_starting
            && self.round_trip < Duration::MAX
            && sample > self.round_trip.mul_f64(QUEUE_GROWTH) + JITTER
        {
            self.end_start();
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
        } else if self.drain.is_none() && now - self.round_trip_at > ROUND_TRIP_AGE && !self.is_starting {
            self.drain = Some((now + 2 * sample, Duration::MAX));
        }
    }

    fn end_start(&mut self) {
        (self.is_starting, self.growth) = (false, (self.bandwidth(), 0));
    }

    /// A round trip is over.
    fn end_round(&mut self, now: Instant) {
        let is_full = core::mem::take(&mut self.is_round_full);
        self.round += 1;
        let delivered = self.delivered - self.round_delivered;
        let lost = self.round_lost as f64 / (delivered + self.round_lost).max(1) as f64;
        if self.is_starting {
            let (before, rounds) = self.growth;
            if self.bandwidth() >= before * GROWTH {
                self.growth = (self.bandwidth(), 0);
            } else if is_full {
                self.growth = (before, rounds + 1);
            }
            if self.growth.1 >= ROUNDS_WITHOUT_GROWTH || is_full && lost > LOSS_MAX_AT_START {
                self.end_start();
            }
        } else {
            let (before, rounds) = self.growth;
            let rises = is_full && self.bandwidth() > before * RISE;
            self.growth = (self.bandwidth(), if rises { rounds + 1 } else { 0 });
            // Much more is free than was known.
            if self.growth.1 >= ROUNDS_RISING {
                (self.is_starting, self.growth) = (true, (self.bandwidth(), 0));
            }
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
        if is_full && !self.is_starting {
            self.reported.store(self.bandwidth() as u64, Ordering::Relaxed);
        }
        (self.round_began, self.round_delivered, self.round_lost) = (now, self.delivered, 0);
    }

    /// A packet has arrived.
    fn acknowledge(&mut self, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.batch += bytes;
        self.newest = self.newest.max(Some(sent));
    }

    fn set_window(&mut self, is_full: bool) {
        let gain = if self.drain.is_some() { DRAIN_GAIN } else { GAIN };
        let path = self.bandwidth() * self.round_trip.as_secs_f64();
        // What waits for the next acknowledgement is not on the path any more.
        let unacknowledged = 2 * u64::from(PACKETS_PER_ACK) * self.mtu;
        let window = ((gain * path) as u64 + unacknowledged).max(PACKETS_MIN * self.mtu);
        // An application that sends little does not show that the path carries little.
        self.window = if is_full || self.drain.is_some() { window } else { self.window.max(window) };
    }
}

impl Controller for Model {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        if self.sent.back().is_none_or(|(at, _)| *at < now) {
            self.sent.push_back((now, self.delivered));
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

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _is_app_limited: bool, _largest: Option<u64>) {
        let Some(sent) = self.newest.take() else { return };
        let batch = core::mem::take(&mut self.batch);
        let is_full = 2 * (in_flight + batch) >= self.window;
        self.is_round_full |= is_full;
        if self.is_starting {
            // No more than twice what was in flight: an application that sends little proves little.
            self.window = self.window.max((self.window + batch).min(2 * (in_flight + batch)));
        }
        let elapsed = now.saturating_duration_since(sent);
        if elapsed.is_zero() {
            return;
        }
        self.add_round_trip(now, elapsed, is_full);
        if let Some(before) = self.delivered_before(sent) {
            self.add_bandwidth((self.delivered - before) as f64 / elapsed.as_secs_f64(), is_full);
        }
        if sent >= self.round_began {
            self.end_round(now);
        }
        if !self.is_starting {
            self.set_window(is_full);
        }
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.round_lost += lost_bytes;
        if is_persistent {
            // Nothing arrives any more: begin again.
            self.is_starting = true;
            self.growth = (0.0, 0);
            self.bandwidth.clear();
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
