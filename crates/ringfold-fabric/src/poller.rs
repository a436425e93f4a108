//! Waiting for many sockets at once, and being woken from that.
//!
//! It is level-triggered: what a turn leaves unread is told again, so every turn can be bounded. Any number of
//! threads may wait at the same time; whoever handles the sockets holds a lock of its own.

use crate::limits;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The name of a socket in a poller. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(u64);

/// The token of the kick; sockets have others.
const KICK: Token = Token(0);

/// Sockets that one wait tells of at most.
const READY_MAX: usize = 64;

/// The poller.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    kick: OwnedFd,
    next: AtomicU64,
    unreachable_after: Duration,
}

/// Where [`Poller::wait`] puts its answers; kept between calls so that nothing is allocated.
#[derive(Default)]
pub struct Readiness {
    events: Vec<epoll::Event>,
}

// SAFETY: what is kept are tokens, which are numbers; only the type that the system fills has room for pointers.
unsafe impl Send for Readiness {}

impl Readiness {
    /// Forgets the answers.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Whether there is no answer: no socket, and no kick either.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The sockets that something can be done with.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.events.iter().map(|event| Token(event.data.u64())).filter(|token| *token != KICK)
    }
}

impl Poller {
    /// A poller without sockets.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &kick, epoll::EventData::new_u64(KICK.0), epoll::EventFlags::IN)?;
        let unreachable_after = limits::unreachable_after();
        Ok(Self { epoll, kick, next: AtomicU64::new(KICK.0 + 1), unreachable_after })
    }

    /// Connections that are registered with it are over when the other end's host has not answered for so long, or as
    /// long as [`limits::unreachable_after`] says.
    pub fn with_unreachable_after(self, unreachable_after: Option<Duration>) -> Self {
        Self { unreachable_after: unreachable_after.unwrap_or(self.unreachable_after), ..self }
    }

    /// How long the other host of a connection may be silent, although its system should have answered.
    pub(crate) fn unreachable_after(&self) -> Duration {
        self.unreachable_after
    }

    /// A new name.
    pub fn token(&self) -> Token {
        Token(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Watches a socket for input, and for room to write if `write` is set.
    pub fn add(&self, socket: impl AsFd, token: Token, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token.0), flags(write))?)
    }

    /// Watches, or no longer watches, a socket for room to write.
    pub fn modify(&self, socket: impl AsFd, token: Token, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token.0), flags(write))?)
    }

    /// Watches a socket for room to write alone, or for nothing but its end.
    pub fn ignore_input(&self, socket: impl AsFd, token: Token, write: bool) -> io::Result<()> {
        let flags = if write { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token.0), flags)?)
    }

    /// Forgets a socket. One that is closed is forgotten by itself.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until a socket is ready, someone kicks, or the time is over.
    pub fn wait(&self, ready: &mut Readiness, patience: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: patience.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        ready.events.clear();
        ready.events.reserve(READY_MAX);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready.events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if ready.events.iter().any(|event| event.data.u64() == KICK.0) {
            // Whoever reads it first has taken the kick for all.
            let _ = rustix::io::read(&self.kick, &mut [0; 8]);
        }
        Ok(())
    }

    /// Ends a wait of another thread, the next one if there is none now.
    pub fn kick(&self) {
        // It can only fail because it has been kicked 2^64 times.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }
}

fn flags(write: bool) -> epoll::EventFlags {
    if write { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}
