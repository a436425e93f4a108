//! A measured rank of a group of fixed ranks.

use super::bench_op::BenchOp;
use super::machine::explain_cores;
use super::measured_group::{MeasuredGroup, RankArguments};
use super::pattern::PatternElement;
use super::plan::{self, Route};
use super::point::Point;
use super::setting::BenchMedium;
use super::variant::Variant;
use crate::size::ByteSize;
use anyhow::{Context, Result};
use ringfold::{Bootstrap, Error, Group, Media, TuningFile};
use std::time::Duration;

const OPERATION_TIMEOUT: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// With a token, connections are encrypted.
const TOKEN: &str = "only for measurements";

pub(crate) struct Fixed {
    group: Group,
    rank: usize,
    world: usize,
    variant: Variant,
    /// Whether links go through shared memory.
    is_local: bool,
    shares_buffers: bool,
}

impl Fixed {
    pub(crate) fn join(arguments: &RankArguments) -> Result<Self> {
        let &RankArguments { rank, world, medium, shared_buffers: shares_buffers, .. } = arguments;
        let is_tcp = matches!(medium, BenchMedium::Tcp | BenchMedium::Tls);
        let media = if is_tcp { Media::Tcp } else { Media::Shared };
        let mut builder = Group::builder()
            .rank(rank)
            .world(world)
            .bootstrap(Bootstrap::File(arguments.rendezvous.clone().into()))
            .media(media)
            .integrity(arguments.integrity)
            .reproducible(arguments.reproducible)
            .timeout(OPERATION_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT);
        if medium == BenchMedium::Tls {
            builder = builder.token(TOKEN);
        }
        if let Some(path) = &arguments.tuning {
            builder = builder.tuning(TuningFile::read(path)?.tuning);
        }
        let group = builder.connect().context("cannot connect the group")?;
        let (variant, is_local) = (arguments.variant(), !is_tcp);
        Ok(Self { group, rank, world, variant, is_local, shares_buffers })
    }
}

impl Fixed {
    /// Whether the ranks read the buffers of a reduction in place, and why.
    fn explain_shared_buffers(&self, point: &Point) -> String {
        let limit = ByteSize(Group::SHARED_BUFFER_BYTES_MIN as u64);
        match (
            point.bytes() >= Group::SHARED_BUFFER_BYTES_MIN,
            self.shares_buffers,
            self.group.shared_collectives(),
        ) {
            (false, ..) => format!("shared buffers are read in place from {limit} on"),
            (true, false, _) => {
                "buffers are not shared, so they are not read in place (--shared-buffers)".into()
            }
            (true, true, 0) => "shared buffers are read in place, if all ranks can map them".into(),
            (true, true, _) => "the shared buffers of all ranks are read in place".into(),
        }
    }
}

impl MeasuredGroup for Fixed {
    fn note(&self) -> Option<String> {
        (self.variant != Variant::PLAIN).then(|| self.variant.to_string())
    }

    fn unsupported_reason(&self, point: &Point) -> Option<String> {
        (point.kind == BenchOp::Transfer && self.world < 2)
            .then(|| "a transfer needs at least two ranks".into())
    }

    fn explain(&self, point: &Point) -> String {
        let shared = self.group.is_shared();
        let has_board = shared && point.kind != BenchOp::Transfer;
        let route = if has_board { Route::Board } else { Route::Links { shared: self.is_local } };
        let plan = plan::explain(point, (self.rank, self.world), self.variant, route, &self.group.tuning());
        match (point.kind, self.group.copies_directly()) {
            (BenchOp::Scatter | BenchOp::AllToAll, Ok(())) => {
                let limit = ByteSize(Group::DIRECT_COPY_BYTES_MIN as u64);
                format!("{plan}; pieces from {limit} on are read from the memory of the other rank")
            }
            (BenchOp::Scatter | BenchOp::AllToAll, Err(why)) if shared => {
                format!("{plan}; no piece is read from the memory of the other rank: {why}")
            }
            (BenchOp::AllReduce | BenchOp::ReduceScatter, _) if shared => {
                format!(
                    "{plan}; {}; {}",
                    self.explain_shared_buffers(point),
                    explain_cores(self.world, self.group.fold_threads())
                )
            }
            _ => plan,
        }
    }

    #[inline]
    fn call<T: PatternElement>(
        &mut self,
        point: &Point,
        send: &mut [T],
        recv: &mut [T],
    ) -> Result<(), Error> {
        let (group, op, last) = (&self.group, point.op, self.world - 1);
        match point.kind {
            BenchOp::AllReduce if recv.is_empty() => group.all_reduce(send, op),
            BenchOp::AllReduce => group.all_reduce_into(send, recv, op),
            BenchOp::Reduce => group.reduce(send, 0, op),
            BenchOp::Broadcast => group.broadcast(send, 0),
            BenchOp::AllGather => group.all_gather(send, recv),
            BenchOp::ReduceScatter => group.reduce_scatter(send, recv, op),
            BenchOp::Gather => group.gather(send, recv, 0),
            BenchOp::Scatter => group.scatter(send, recv, 0),
            BenchOp::AllToAll => group.all_to_all(send, recv),
            BenchOp::Transfer if self.rank == 0 => {
                group.send(send, last)?;
                group.recv(recv, last)
            }
            BenchOp::Transfer if self.rank == last => {
                group.recv(recv, 0)?;
                group.send(send, 0)
            }
            BenchOp::Transfer => Ok(()),
            BenchOp::Barrier => group.barrier(),
        }
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.group.barrier()
    }
}
