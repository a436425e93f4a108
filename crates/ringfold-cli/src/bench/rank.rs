//! One rank that is measured: a process that does what it is told, line by line.

use super::kind::{Place, Share};
use super::order::{Answer, Cost, Hello, Order};
use super::pattern::{self, Whole};
use super::point::Point;
use super::usage::{self, Counters};
use super::{Medium, elastic, fixed};
use crate::command::{FAILURE, SUCCESS};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use ringfold::DType;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// What a rank's parent tells it at the start.
#[derive(Args, Clone, Debug)]
pub struct RankArguments {
    /// Where orders come from.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    #[arg(long)]
    pub(crate) rank: usize,
    #[arg(long)]
    pub(crate) world: usize,
    #[arg(long)]
    pub(crate) medium: Medium,
    /// Where ranks meet: a master's address, or a file.
    #[arg(long)]
    pub(crate) meet: String,
    /// The core to stay on.
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// Operations at once that share the payload.
    #[arg(long, default_value_t = 1)]
    pub(crate) concurrent: usize,
    /// What this rank offers to the group.
    #[arg(long)]
    pub(crate) tuning: Option<PathBuf>,
}

impl RankArguments {
    /// Joins, obeys, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        // Between two orders the end of the socket tells that the parent is gone; within a call nothing does.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if let Some(core) = self.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            sched_setaffinity(None, &cores).with_context(|| format!("can't be bound to core {core}"))?;
        }
        let base_bytes = usage::resident_bytes();
        let stream = UnixStream::connect(&self.socket).context("the parent does not listen")?;
        let mut line = Line { orders: BufReader::new(stream.try_clone()?), answers: stream };
        line.tell(&Hello { rank: self.rank, about: format!("Ringfold {}", env!("CARGO_PKG_VERSION")) })?;
        let served = match self.medium {
            Medium::Elastic => {
                elastic::Elastic::join(self).and_then(|member| self.serve(member, base_bytes, &mut line))
            }
            Medium::Shm | Medium::Tcp => {
                fixed::Fixed::join(self).and_then(|member| self.serve(member, base_bytes, &mut line))
            }
        };
        match served {
            Ok(()) => Ok(SUCCESS),
            Err(error) => {
                line.tell(&Answer::Failed { error: format!("{error:#}") })?;
                Ok(FAILURE)
            }
        }
    }

    fn serve<M: Member>(&self, member: M, base_bytes: u64, line: &mut Line) -> Result<()> {
        line.tell(&Answer::Joined { joined: true, how: member.how() })?;
        let buffers = Buffers::default();
        let mut rank = Rank { member, rank: self.rank, world: self.world, base_bytes, buffers, point: None };
        while let Some(order) = line.next()? {
            let answer = rank.obey(order)?;
            line.tell(&answer)?;
        }
        Ok(())
    }
}

/// What a rank belongs to.
pub(crate) trait Member {
    /// More about the group than was asked for.
    fn how(&self) -> Option<String>;

    /// Why a point can't be measured here, if it can't.
    fn lacks(&self, point: &Point) -> Option<String>;

    /// How a point is carried out here, and why.
    fn explain(&self, point: &Point) -> String;

    /// Makes a call. Nothing to receive means in place.
    fn call<T: Whole>(
        &mut self,
        point: &Point,
        send: &mut [T],
        recv: &mut [T],
    ) -> Result<(), ringfold::Error>;

    /// Nobody leaves before everyone has come.
    fn barrier(&mut self) -> Result<(), ringfold::Error>;
}

struct Line {
    orders: BufReader<UnixStream>,
    answers: UnixStream,
}

impl Line {
    /// Blocks until there is one; none if there are no more.
    fn next(&mut self) -> Result<Option<Order>> {
        let mut text = String::new();
        if self.orders.read_line(&mut text).context("the parent's orders")? == 0 {
            return Ok(None);
        }
        let order = text.parse().map_err(|why: String| anyhow!(why))?;
        Ok(Some(order).filter(|order| *order != Order::End))
    }

    fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string(what)?;
        text.push('\n');
        self.answers.write_all(text.as_bytes()).context("the parent does not listen")
    }
}

/// Memory of all points of a rank. It is zeroed by the system when it is first touched, and counts from then on.
#[derive(Default)]
struct Buffers {
    send: Vec<u64>,
    recv: Vec<u64>,
    touched_send_bytes: usize,
    touched_recv_bytes: usize,
}

impl Buffers {
    fn reserve(bytes: usize) -> Self {
        let words = bytes.div_ceil(8);
        Self { send: vec![0; words], recv: vec![0; words], ..Self::default() }
    }

    fn views<T: Whole>(&mut self, share: Share) -> Result<(&mut [T], &mut [T])> {
        let (sent, received) = (share.sent * size_of::<T>(), share.received * size_of::<T>());
        self.touched_send_bytes = self.touched_send_bytes.max(sent);
        self.touched_recv_bytes = self.touched_recv_bytes.max(received);
        let small = || anyhow!("more buffer is needed than was reserved");
        let send = self.send.as_mut_bytes().get_mut(..sent).ok_or_else(small)?;
        let recv = self.recv.as_mut_bytes().get_mut(..received).ok_or_else(small)?;
        let misfit = |what: String| anyhow!("a buffer does not fit: {what}");
        Ok((
            <[T]>::mut_from_bytes(send).map_err(|e| misfit(e.to_string()))?,
            <[T]>::mut_from_bytes(recv).map_err(|e| misfit(e.to_string()))?,
        ))
    }
}

struct Rank<M> {
    member: M,
    rank: usize,
    world: usize,
    /// Memory that the program had before it joined.
    base_bytes: u64,
    buffers: Buffers,
    /// What calls are made for now.
    point: Option<Point>,
}

/// Runs the body with the Rust type of a type's elements.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::U8 => {
                type $T = u8;
                $body
            }
            DType::I8 => {
                type $T = i8;
                $body
            }
            DType::U16 => {
                type $T = u16;
                $body
            }
            DType::I16 => {
                type $T = i16;
                $body
            }
            DType::U32 => {
                type $T = u32;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::U64 => {
                type $T = u64;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::F16 => {
                type $T = half::f16;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::C64 | DType::C128 => Err(anyhow!("complex numbers can't be measured")),
        }
    };
}

impl<M: Member> Rank<M> {
    fn obey(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Reserve { bytes } => {
                self.buffers = Buffers::reserve(bytes);
                Ok(Answer::Reserved { reserved: true })
            }
            Order::Prepare { point, check } => {
                if let Some(why) = self.member.lacks(&point) {
                    return Ok(Answer::Unsupported { unsupported: why });
                }
                self.point = Some(point);
                let check = with_element!(point.dtype, T => self.prepare::<T>(point, check))?;
                usage::reset_peak();
                Ok(Answer::Ready { ready: true, check })
            }
            Order::Explain => {
                let point = self.point.context("there is nothing to be explained")?;
                Ok(Answer::Explained { plan: self.member.explain(&point) })
            }
            Order::Time { lead, calls } => {
                let point = self.point.context("there is nothing to be timed")?;
                let cost = with_element!(point.dtype, T => self.time::<T>(point, lead, calls))?;
                Ok(Answer::Timed(cost))
            }
            Order::End => Err(anyhow!("there is nothing left to do")),
        }
    }

    fn prepare<T: Whole>(&mut self, point: Point, check: bool) -> Result<Option<String>> {
        let share = point.kind.share(point.place, point.count, self.rank, self.world);
        let (send, recv) = self.buffers.views::<T>(share)?;
        pattern::fill(&point, self.rank, send, recv);
        let mut found = None;
        if check {
            self.member.call(&point, send, recv)?;
            found = Some(pattern::check(&point, (self.rank, self.world), send, recv));
        }
        if point.place == Place::In {
            // What is summed up again and again shall stay what it is.
            send.as_mut_bytes().fill(0);
        }
        Ok(found)
    }

    fn time<T: Whole>(&mut self, point: Point, lead: u64, calls: u64) -> Result<Cost> {
        let share = point.kind.share(point.place, point.count, self.rank, self.world);
        let (send, recv) = self.buffers.views::<T>(share)?;
        let member = &mut self.member;
        member.barrier()?;
        for _ in 0..lead {
            member.call(&point, send, recv)?;
        }
        member.barrier()?;
        let before = Counters::now();
        let begin = Instant::now();
        for _ in 0..calls {
            member.call(&point, send, recv)?;
        }
        let elapsed = begin.elapsed();
        let cpu_ns = usage::cpu_ns() - before.cpu_ns;
        let used = Counters::now().since(before);
        let known_bytes =
            self.base_bytes + (self.buffers.touched_send_bytes + self.buffers.touched_recv_bytes) as u64;
        Ok(Cost {
            elapsed_ns: elapsed.as_nanos() as u64,
            cpu_ns,
            minor_faults: used.minor_faults,
            major_faults: used.major_faults,
            beyond_bytes: usage::peak_bytes().saturating_sub(known_bytes),
        })
    }
}
