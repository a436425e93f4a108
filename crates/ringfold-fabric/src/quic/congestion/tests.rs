use super::*;

const PACKET: u64 = 1400;
const STEP: Duration = Duration::from_micros(500);

/// A path of one queue, with virtual time, on which packets are sent as the window allows.
struct Path {
    model: Model,
    epoch: Instant,
    began: Instant,
    /// Bytes per second.
    rate: f64,
    delay: Duration,
    /// The longest queue.
    queue: Duration,
    /// One packet of so many is lost; 0 means none.
    loss_interval: u64,
    sent: u64,
    overflowed: u64,
    longest_queue: Duration,
    /// Bytes per second that the application sends; as much as possible if there is none.
    application: Option<f64>,
    /// How often it sends.
    message_interval: Duration,
    /// How long acknowledgements wait at most in a queue of the way back, which fills in 900 ms and drains in 100 ms.
    way_back: Duration,
}

impl Path {
    fn new(rate: f64, delay: Duration) -> Self {
        let began = Instant::now();
        let queue = Duration::from_millis(100);
        let model = Model::new(began, PACKET as u16, Arc::default());
        Self {
            model,
            epoch: began,
            began,
            rate,
            delay,
            queue,
            loss_interval: 0,
            sent: 0,
            overflowed: 0,
            longest_queue: Duration::ZERO,
            application: None,
            message_interval: STEP,
            way_back: Duration::ZERO,
        }
    }

    fn way_back(&self, at: Instant) -> Duration {
        let phase = f64::from(at.duration_since(self.epoch).subsec_millis()) / 1000.0;
        self.way_back.mul_f64(if phase < 0.9 { phase / 0.9 } else { (1.0 - phase) / 0.1 })
    }

    /// Sends for some time. Returns the bytes that arrived per second, relative to the rate.
    fn run(&mut self, seconds: f64) -> f64 {
        let (mut now, end) = (self.began, self.began + Duration::from_secs_f64(seconds));
        let mut flying: VecDeque<(Instant, Instant, bool)> = VecDeque::new();
        let (mut free_at, mut in_flight, mut delivered, mut credit) = (now, 0_u64, 0_u64, 0.0);
        let (mut supply, mut arrived, mut next_message) = (0.0, Vec::new(), now);
        while now < end {
            now += STEP;
            while let Some((_, sent, is_lost)) = flying.pop_front_if(|(at, ..)| *at <= now) {
                if is_lost {
                    in_flight -= PACKET;
                    self.model.on_congestion_event(now, sent, false, PACKET);
                } else {
                    arrived.push((now, sent));
                }
            }
            // Acknowledgements come for several packets at once, or after a time.
            let is_due = arrived.first().is_some_and(|(at, _)| now - *at >= Duration::from_millis(25));
            if is_due || arrived.len() >= PACKETS_PER_ACK as usize {
                for (_, sent) in arrived.drain(..) {
                    in_flight -= PACKET;
                    delivered += PACKET;
                    self.model.acknowledge(sent, PACKET);
                }
                let is_app_limited = supply < PACKET as f64 && self.application.is_some();
                self.model.on_end_acks(now, in_flight, is_app_limited, None);
            }
            // Without a pace, as quinn does it: a quarter faster than a window per round trip.
            let window = self.model.window();
            let quinns = 1.25 * window as f64 / (2.0 * self.delay.as_secs_f64());
            let pace = Some(self.model.rates.pace.load(Ordering::Relaxed) as f64).filter(|pace| *pace > 0.0);
            credit = (credit + pace.unwrap_or(quinns) * STEP.as_secs_f64()).min(20.0 * PACKET as f64);
            if now >= next_message {
                next_message += self.message_interval;
                let seconds = self.message_interval.as_secs_f64();
                supply += self.application.map_or(f64::INFINITY, |rate| rate * seconds);
            }
            while in_flight + PACKET <= window && credit >= PACKET as f64 && supply >= PACKET as f64 {
                supply -= PACKET as f64;
                credit -= PACKET as f64;
                self.sent += 1;
                in_flight += PACKET;
                self.model.on_sent(now, PACKET, self.sent);
                let begin = free_at.max(now);
                let overflows = begin - now > self.queue;
                self.longest_queue = self.longest_queue.max(begin - now);
                self.overflowed += u64::from(overflows);
                let lost =
                    overflows || self.loss_interval > 0 && self.sent.is_multiple_of(self.loss_interval);
                if !overflows {
                    free_at = begin + Duration::from_secs_f64(PACKET as f64 / self.rate);
                }
                let arrives = free_at + 2 * self.delay;
                flying.push_back((arrives + self.way_back(arrives), now, lost));
            }
        }
        self.began = now;
        delivered as f64 / seconds / self.rate
    }
}

/// 200 Mbit/s and a round trip of 100 ms.
fn ocean() -> Path {
    Path::new(25e6, Duration::from_millis(50))
}

#[test]
fn the_start_takes_few_round_trips_and_fills_the_path() {
    let mut path = ocean();
    let first = path.run(2.0);
    assert!(first > 0.6, "{first} of the rate in the first two seconds");
    assert!(path.overflowed * 25 < path.sent, "{} of {} packets overflowed", path.overflowed, path.sent);
    let later = path.run(5.0);
    assert!(later > 0.97, "{later} of the rate");
}

#[test]
fn random_losses_do_not_slow_it_down() {
    let mut path = ocean();
    path.run(2.0);
    for loss_interval in [1000, 100] {
        path.loss_interval = loss_interval;
        let share = path.run(5.0);
        assert!(share > 0.95, "{share} of the rate with a loss every {loss_interval} packets");
    }
}

#[test]
fn the_standing_queue_is_short() {
    let mut path = ocean();
    path.run(4.0);
    path.longest_queue = Duration::ZERO;
    path.run(8.0);
    let longest = path.longest_queue.as_secs_f64();
    assert!(longest < 0.035, "{longest} s");
    assert!(path.overflowed * 50 < path.sent, "{} of {} packets overflowed", path.overflowed, path.sent);
}

#[test]
fn it_follows_the_bandwidth_of_the_path() {
    let mut path = ocean();
    path.run(3.0);
    path.rate /= 4.0;
    path.run(4.0);
    let less = path.run(4.0);
    path.rate *= 8.0;
    path.run(4.0);
    let more = path.run(4.0);
    assert!(less > 0.95 && more > 0.9, "{less} of a smaller rate, {more} of a greater one");
}

#[test]
fn it_follows_a_longer_round_trip() {
    let mut path = ocean();
    path.run(3.0);
    path.delay *= 2;
    path.run(25.0);
    let share = path.run(5.0);
    assert!(share > 0.9, "{share} of the rate after the path became longer");
}

#[test]
fn the_window_stays_while_nothing_is_sent() {
    let mut path = ocean();
    path.run(3.0);
    let window = path.model.window();
    path.began += Duration::from_secs(60);
    let share = path.run(0.5);
    assert!(share > 0.7 && path.model.window() > window / 2, "{share} of the rate, window {window}");
}

#[test]
fn an_application_that_sends_little_keeps_its_window() {
    let mut path = ocean();
    path.run(3.0);
    let window = path.model.window();
    path.application = Some(50_000.0);
    path.run(30.0);
    assert!(path.model.window() > window / 2, "{} of {window} bytes", path.model.window());
    path.application = None;
    let share = path.run(1.0);
    assert!(share > 0.8, "{share} of the rate when it sends much again");
}

#[test]
fn a_fresh_connection_with_small_messages_does_not_end_its_start() {
    let mut path = ocean();
    path.application = Some(20_000.0);
    path.run(5.0);
    path.application = None;
    let share = path.run(2.0);
    assert!(share > 0.6, "{share} of the rate in two seconds");
}

#[test]
fn it_recovers_from_an_estimate_that_is_far_too_small() {
    let mut path = ocean();
    path.run(1.0);
    path.model.bandwidth = [(path.model.round, 1000.0)].into();
    path.model.enter(path.began, Phase::Cruise);
    path.model.set_window(true);
    path.model.set_pace();
    path.run(3.0);
    let share = path.run(2.0);
    assert!(share > 0.9, "{share} of the rate");
}

#[test]
fn acknowledgements_that_come_together_do_not_seem_like_bandwidth() {
    let mut path = ocean();
    path.way_back = Duration::from_millis(80);
    path.run(20.0);
    path.overflowed = 0;
    let share = path.run(20.0);
    let measured = path.model.bandwidth() / path.rate;
    assert!(
        share > 0.8 && measured < 1.15,
        "{share} of the rate, which seems to be {measured} of what it is"
    );
    assert!(path.overflowed * 200 < path.sent, "{} of {} packets overflowed", path.overflowed, path.sent);
}

#[test]
fn messages_that_are_shorter_than_the_path_are_not_slowed_down() {
    let mut path = ocean();
    (path.application, path.message_interval) = (Some(5e6), Duration::from_millis(200));
    path.run(6.0);
    let pace = path.model.rates.pace.load(Ordering::Relaxed);
    assert!(pace == 0 || pace as f64 >= 0.9 * path.rate, "{pace} bytes per second");
}

#[test]
fn messages_that_are_longer_than_the_path_make_no_long_queue() {
    for size in [3.1e6, 4.2e6, 6.3e6] {
        let mut path = ocean();
        let interval = size / path.rate + 0.15;
        (path.application, path.message_interval) =
            (Some(size / interval), Duration::from_secs_f64(interval));
        path.run(8.0 * interval);
        path.longest_queue = Duration::ZERO;
        path.run(8.0 * interval);
        let measured = path.model.bandwidth() / path.rate;
        assert!(
            path.longest_queue < Duration::from_millis(50) && measured > 0.75,
            "{size} bytes: a queue of {:?}, the bandwidth seems to be {measured} of what it is",
            path.longest_queue
        );
    }
}
