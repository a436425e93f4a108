//! The process of one measured rank. It executes the commands of its parent.

use super::bench_op::{ElementCounts, Placement};
use super::measured_group::{MeasuredGroup, RankArguments};
use super::pattern::{self, PatternElement};
use super::point::Point;
use super::rank_protocol::{CallCost, RankCommand, RankHello, RankReply};
use super::setting::BenchMedium;
use super::usage::{self, Counters};
use super::{elastic, fixed};
use crate::exit_code::{FAILURE, SUCCESS};
use anyhow::{Context, Result, anyhow};
use ringfold::{DType, SharedBuffer};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

impl RankArguments {
    /// Joins the group, executes commands, and returns the exit code.
    pub fn run(&self) -> Result<i32> {
        // During a call the rank does not read the socket, so it would not notice that its parent died.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if let Some(core) = self.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            sched_setaffinity(None, &cores).with_context(|| format!("cannot bind to core {core}"))?;
        }
        let base_bytes = usage::resident_bytes();
        let stream = UnixStream::connect(&self.socket).context("cannot connect to the parent")?;
        let mut parent = ParentConnection { commands: BufReader::new(stream.try_clone()?), replies: stream };
        parent
            .send(&RankHello { rank: self.rank, about: format!("Ringfold {}", env!("CARGO_PKG_VERSION")) })?;
        let served = match self.medium {
            BenchMedium::Elastic | BenchMedium::Lab => {
                elastic::Elastic::join(self).and_then(|group| self.serve(group, base_bytes, &mut parent))
            }
            BenchMedium::Shm | BenchMedium::Tcp | BenchMedium::Tls => {
                fixed::Fixed::join(self).and_then(|group| self.serve(group, base_bytes, &mut parent))
            }
        };
        match served {
            Ok(()) => Ok(SUCCESS),
            Err(error) => {
                parent.send(&RankReply::Failed { error: format!("{error:#}") })?;
                Ok(FAILURE)
            }
        }
    }

    fn serve<M: MeasuredGroup>(
        &self,
        group: M,
        base_bytes: u64,
        parent: &mut ParentConnection,
    ) -> Result<()> {
        parent.send(&RankReply::Joined { joined: true, note: group.note() })?;
        let (rank, world, buffers, are_shared) =
            (self.rank, self.world, BenchBuffers::default(), self.shared_buffers);
        let mut rank = RankWorker { group, rank, world, base_bytes, buffers, are_shared, point: None };
        while let Some(command) = parent.next()? {
            let reply = rank.execute(command)?;
            parent.send(&reply)?;
        }
        Ok(())
    }
}

/// The socket to the process that measures.
struct ParentConnection {
    commands: BufReader<UnixStream>,
    replies: UnixStream,
}

impl ParentConnection {
    /// Waits for the next command; none after the last one.
    fn next(&mut self) -> Result<Option<RankCommand>> {
        let mut text = String::new();
        if self.commands.read_line(&mut text).context("cannot read from the parent")? == 0 {
            return Ok(None);
        }
        let command = text.parse().map_err(anyhow::Error::msg)?;
        Ok(Some(command).filter(|command| *command != RankCommand::End))
    }

    fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string(message)?;
        text.push('\n');
        self.replies.write_all(text.as_bytes()).context("cannot write to the parent")
    }
}

/// The buffers of a rank, large enough for all points. Memory counts from its first use.
#[derive(Default)]
struct BenchBuffers {
    send: BenchBuffer,
    recv: BenchBuffer,
    touched_send_bytes: usize,
    touched_recv_bytes: usize,
}

enum BenchBuffer {
    Own(Vec<u64>),
    Shared(SharedBuffer),
}

impl Default for BenchBuffer {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl BenchBuffer {
    fn reserve(bytes: usize, is_shared: bool) -> Result<Self> {
        if is_shared {
            let buffer = SharedBuffer::zeroed(bytes).context("cannot allocate shared memory")?;
            return Ok(Self::Shared(buffer));
        }
        Ok(Self::Own(vec![0; bytes.div_ceil(8)]))
    }

    fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Own(words) => words.as_mut_bytes(),
            Self::Shared(buffer) => buffer.as_mut_slice(),
        }
    }
}

impl BenchBuffers {
    fn reserve(bytes: usize, are_shared: bool) -> Result<Self> {
        let reserve = || BenchBuffer::reserve(bytes, are_shared);
        Ok(Self { send: reserve()?, recv: reserve()?, ..Self::default() })
    }

    fn views<T: PatternElement>(&mut self, share: ElementCounts) -> Result<(&mut [T], &mut [T])> {
        let (sent, received) = (share.sent * size_of::<T>(), share.received * size_of::<T>());
        self.touched_send_bytes = self.touched_send_bytes.max(sent);
        self.touched_recv_bytes = self.touched_recv_bytes.max(received);
        let small = || anyhow!("the reserved buffers are too small: {sent} and {received} bytes needed");
        let send = self.send.as_mut_bytes().get_mut(..sent).ok_or_else(small)?;
        let recv = self.recv.as_mut_bytes().get_mut(..received).ok_or_else(small)?;
        let views = <[T]>::mut_from_bytes(send).ok().zip(<[T]>::mut_from_bytes(recv).ok());
        views.context("the buffers are not aligned for the element type")
    }
}

/// Executes commands with the buffers and the group of a rank.
struct RankWorker<M> {
    group: M,
    rank: usize,
    world: usize,
    /// The memory of the process before it joined.
    base_bytes: u64,
    buffers: BenchBuffers,
    are_shared: bool,
    /// The prepared point.
    point: Option<Point>,
}

/// Runs the body with `$T` as the Rust type of the elements.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_element!(@ $dtype, $T => $body; U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64)
    };
    (@ $dtype:expr, $T:ident => $body:expr; $($variant:ident $type:ty),*) => {
        match $dtype {
            $(DType::$variant => {
                type $T = $type;
                $body
            })*
            DType::C64 | DType::C128 => Err(anyhow!("unsupported element type: complex numbers")),
        }
    };
}

impl<M: MeasuredGroup> RankWorker<M> {
    fn execute(&mut self, command: RankCommand) -> Result<RankReply> {
        match command {
            RankCommand::Reserve { bytes } => {
                self.buffers = BenchBuffers::reserve(bytes, self.are_shared)?;
                Ok(RankReply::Reserved { reserved: true })
            }
            RankCommand::Prepare { point, check } => {
                if let Some(why) = self.group.unsupported_reason(&point) {
                    return Ok(RankReply::Unsupported { unsupported: why });
                }
                self.point = Some(point);
                let check = with_element!(point.dtype, T => self.prepare::<T>(point, check))?;
                usage::reset_peak();
                Ok(RankReply::Ready { ready: true, check })
            }
            RankCommand::Explain => {
                let point = self.point.context("no point is prepared")?;
                Ok(RankReply::Explained { plan: self.group.explain(&point) })
            }
            RankCommand::Time { lead, calls } => {
                let point = self.point.context("no point is prepared")?;
                let cost = with_element!(point.dtype, T => self.time::<T>(point, lead, calls))?;
                Ok(RankReply::Timed(cost))
            }
            RankCommand::End => Err(anyhow!("unexpected command: end")),
        }
    }

    fn prepare<T: PatternElement>(&mut self, point: Point, check: bool) -> Result<Option<String>> {
        let share = point.kind.element_counts(point.place, point.count, self.rank, self.world);
        let (send, recv) = self.buffers.views::<T>(share)?;
        pattern::fill(&point, self.rank, send, recv);
        let mut found = None;
        if check {
            self.group.call(&point, send, recv)?;
            found = Some(pattern::check(&point, (self.rank, self.world), send, recv));
        }
        if point.place == Placement::In {
            // Repeated sums must not change the values.
            send.as_mut_bytes().fill(0);
        }
        Ok(found)
    }

    fn time<T: PatternElement>(&mut self, point: Point, lead: u64, calls: u64) -> Result<CallCost> {
        let share = point.kind.element_counts(point.place, point.count, self.rank, self.world);
        let (send, recv) = self.buffers.views::<T>(share)?;
        let group = &mut self.group;
        group.barrier()?;
        for _ in 0..lead {
            group.call(&point, send, recv)?;
        }
        group.barrier()?;
        let before = Counters::now();
        let begin = Instant::now();
        for _ in 0..calls {
            group.call(&point, send, recv)?;
        }
        let elapsed = begin.elapsed();
        let cpu_ns = usage::cpu_ns() - before.cpu_ns;
        let used = Counters::now().since(before);
        let known_bytes =
            self.base_bytes + (self.buffers.touched_send_bytes + self.buffers.touched_recv_bytes) as u64;
        Ok(CallCost {
            elapsed_ns: elapsed.as_nanos() as u64,
            cpu_ns,
            minor_faults: used.minor_faults,
            major_faults: used.major_faults,
            beyond_bytes: usage::peak_bytes().saturating_sub(known_bytes),
        })
    }
}
