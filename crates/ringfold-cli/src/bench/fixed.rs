//! A rank of a group of fixed ranks.

use super::Medium;
use super::kind::Kind;
use super::pattern::Whole;
use super::plan::{self, Route};
use super::point::Point;
use super::rank::{Member, RankArguments};
use crate::tuning_file;
use anyhow::{Context, Result};
use ringfold::{Bootstrap, Error, Group, Media};
use std::time::Duration;

/// No operation that is worth measuring takes longer.
const OPERATION_MAX: Duration = Duration::from_secs(300);
/// How long ranks wait for each other at the start.
const MEETING_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Fixed {
    group: Group,
    rank: usize,
    world: usize,
}

impl Fixed {
    pub(crate) fn join(arguments: &RankArguments) -> Result<Self> {
        let &RankArguments { rank, world, medium, .. } = arguments;
        let media = if medium == Medium::Tcp { Media::Tcp } else { Media::Shared };
        let mut builder = Group::builder()
            .rank(rank)
            .world(world)
            .bootstrap(Bootstrap::File(arguments.meet.clone().into()))
            .media(media)
            .timeout(OPERATION_MAX)
            .connect_patience(MEETING_MAX);
        if let Some(path) = &arguments.tuning {
            builder = builder.tuning(tuning_file::read(path)?);
        }
        let group = builder.connect().context("the group can't be formed")?;
        Ok(Self { group, rank, world })
    }
}

impl Member for Fixed {
    fn how(&self) -> Option<String> {
        None
    }

    fn lacks(&self, point: &Point) -> Option<String> {
        (point.kind == Kind::Transfer && self.world < 2).then(|| "a transfer needs two ranks".into())
    }

    fn explain(&self, point: &Point) -> String {
        let shared = self.group.is_shared();
        let route =
            if shared && point.kind != Kind::Transfer { Route::Board } else { Route::Links { shared } };
        plan::explain(point, self.rank, self.world, route, &self.group.tuning())
    }

    #[inline]
    fn call<T: Whole>(&mut self, point: &Point, send: &mut [T], recv: &mut [T]) -> Result<(), Error> {
        let (group, op, last) = (&self.group, point.op, self.world - 1);
        match point.kind {
            Kind::AllReduce if recv.is_empty() => group.all_reduce(send, op),
            Kind::AllReduce => group.all_reduce_into(send, recv, op),
            Kind::Reduce => group.reduce(send, 0, op),
            Kind::Broadcast => group.broadcast(send, 0),
            Kind::AllGather => group.all_gather(send, recv),
            Kind::ReduceScatter => group.reduce_scatter(send, recv, op),
            Kind::Gather => group.gather(send, recv, 0),
            Kind::Scatter => group.scatter(send, recv, 0),
            Kind::AllToAll => group.all_to_all(send, recv),
            Kind::Transfer if self.rank == 0 => {
                group.send(send, last)?;
                group.recv(recv, last)
            }
            Kind::Transfer if self.rank == last => {
                group.recv(recv, 0)?;
                group.send(send, 0)
            }
            Kind::Transfer => Ok(()),
            Kind::Barrier => group.barrier(),
        }
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.group.barrier()
    }
}
