//! Connections that may move nothing until a time, because their bandwidth is capped.

use super::{TIMER, Token};
use crate::traffic::Direction;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The pauses of a poller. The timer is ready from the end of the first one on.
#[derive(Debug)]
pub(super) struct Pauses {
    timer: OwnedFd,
    until: BTreeMap<Key, Instant>,
    in_order: BTreeSet<(Instant, Key)>,
}

type Key = (Token, Direction);

impl Pauses {
    /// None yet; its timer is registered.
    pub(super) fn new(epoll: &OwnedFd) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(epoll, &timer, epoll::EventData::new_u64(TIMER.0), epoll::EventFlags::IN)?;
        Ok(Self { timer, until: BTreeMap::new(), in_order: BTreeSet::new() })
    }

    pub(super) fn insert(&mut self, key: Key, until: Instant) -> io::Result<()> {
        let first = self.first();
        if let Some(before) = self.until.insert(key, until) {
            self.in_order.remove(&(before, key));
        }
        self.in_order.insert((until, key));
        if self.first() == first { Ok(()) } else { self.set_timer() }
    }

    pub(super) fn remove(&mut self, key: Key) {
        let first = self.first();
        if let Some(before) = self.until.remove(&key) {
            self.in_order.remove(&(before, key));
        }
        if self.first() != first {
            // A timer that is not set reports too early, or is set again by the next pause.
            let _ = self.set_timer();
        }
    }

    /// The sockets whose pauses are over.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = Token> + '_ {
        self.in_order.iter().take_while(move |(until, _)| *until <= now).map(|(_, (token, _))| *token)
    }

    fn first(&self) -> Option<Instant> {
        self.in_order.first().map(|(until, _)| *until)
    }

    /// Setting it also ends that it is ready. Zero means never.
    fn set_timer(&self) -> io::Result<()> {
        let left = self.first().map(|until| until.saturating_duration_since(Instant::now()));
        let at = left.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, |left| Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()).max(1),
        });
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }
}
