//! Groups of fixed ranks, for Python.

use crate::call::{SIGNALS_EVERY, is_interrupted, released};
use crate::group_error::{not_formed, raised, refused};
use crate::group_work::GroupWork;
use crate::operands::Operands;
use crate::owned::Owned;
use crate::place::bootstrap;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ringfold::{DType, GroupOp, Media, OPERATIONS, OpArguments, Operation, ReduceOp, TransferTag};
use std::time::Duration;

/// A group.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Group {
    group: Owned<ringfold::Group>,
    rank: usize,
    world: usize,
}

#[pymethods]
impl Group {
    /// Meets the other ranks.
    #[staticmethod]
    #[pyo3(signature = (*, rank, world, name, at, timeout, patience, restores=false, media="auto"))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords; only one caller")]
    fn connect(
        py: Python<'_>,
        rank: usize,
        world: usize,
        name: String,
        at: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        patience: f64,
        restores: bool,
        media: &str,
    ) -> PyResult<Self> {
        let media = match media {
            "auto" => Media::Auto,
            "tcp" => Media::Tcp,
            "shared" => Media::Shared,
            other => return Err(refused(py, &format!("{other:?} is no medium: auto, tcp and shared are"))),
        };
        let mut builder = ringfold::Group::builder()
            .rank(rank)
            .world(world)
            .name(name)
            .media(media)
            .watch(SIGNALS_EVERY, is_interrupted)
            .restoring(restores)
            .timeout(duration(py, timeout)?)
            .connect_patience(duration(py, patience)?);
        if let Some(at) = at {
            builder = builder.bootstrap(bootstrap(at)?);
        }
        let group = released(py, || builder.connect())?.map_err(|error| not_formed(py, &error))?;
        Ok(Self::of(group))
    }

    /// This process's number.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn world(&self) -> usize {
        self.world
    }

    /// What it is called.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.here(py).map(|group| group.name().to_owned())
    }

    /// What errors call each rank.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.here(py).map(|group| group.members().to_vec())
    }

    /// Whether collectives go through memory that all ranks share.
    #[getter]
    fn is_shared(&self, py: Python<'_>) -> PyResult<bool> {
        self.here(py).map(ringfold::Group::is_shared)
    }

    /// Carries an operation out.
    #[pyo3(signature = (op, dtype, reduce, peer, counts, others, inputs, outputs, timeout, tag=0))]
    #[expect(
        clippy::too_many_arguments,
        reason = "this is called for each operation, and an object would cost time"
    )]
    fn run(
        &self,
        py: Python<'_>,
        op: &str,
        dtype: u8,
        reduce: u8,
        peer: i64,
        counts: Option<Vec<usize>>,
        others: Option<Vec<usize>>,
        inputs: &Bound<'_, PyList>,
        outputs: &Bound<'_, PyList>,
        timeout: Option<f64>,
        tag: u64,
    ) -> PyResult<()> {
        let group = self.here(py)?;
        let dtype = element(py, dtype)?;
        let (reduce, tag) = (reduction(py, reduce)?, self::tag(py, tag)?);
        let op = named(py, op, OpArguments { reduce, peer, counts, others, tag })?;
        let operands = Operands::of(inputs, outputs, op.may_be_in_place())?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let call = || operands.lend(|slices| group.run_slices(op, dtype, slices, timeout));
        released(py, call)?.map_err(|error| raised(py, &error))
    }

    /// Begins an operation.
    #[expect(clippy::too_many_arguments, reason = "as for run")]
    fn submit(
        &self,
        py: Python<'_>,
        op: &str,
        dtype: u8,
        reduce: u8,
        peer: i64,
        counts: Option<Vec<usize>>,
        others: Option<Vec<usize>>,
        inputs: &Bound<'_, PyList>,
        outputs: &Bound<'_, PyList>,
        timeout: Option<f64>,
        tag: u64,
        keep: Py<PyAny>,
    ) -> PyResult<GroupWork> {
        let group = self.here(py)?;
        let dtype = element(py, dtype)?;
        let (reduce, tag) = (reduction(py, reduce)?, self::tag(py, tag)?);
        let op = named(py, op, OpArguments { reduce, peer, counts, others, tag })?;
        let operands = Operands::of(inputs, outputs, op.may_be_in_place())?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let (buffers, then) = operands.keep(keep);
        let operation = Operation { op, dtype, buffers, timeout };
        let begin = || match then {
            None => group.submit(operation),
            Some(then) => group.submit_then(operation, then),
        };
        released(py, begin)?.map(GroupWork::new).map_err(|error| raised(py, &error))
    }

    /// A group of some of the ranks, which alone call this; a rank's new number is its place among them.
    fn split(&self, py: Python<'_>, ranks: Vec<usize>, name: &str, timeout: f64) -> PyResult<Self> {
        let (group, patience) = (self.here(py)?, duration(py, timeout)?);
        let child = released(py, || group.split_within(&ranks, name, patience))?;
        child.map(Self::of).map_err(|error| not_formed(py, &error))
    }

    /// Tells ranks something beside all operations.
    fn tell(&self, py: Python<'_>, ranks: Vec<usize>, topic: u64, text: String) -> PyResult<()> {
        let group = self.here(py)?;
        released(py, || group.tell(&ranks, topic, &text))?.map_err(|error| raised(py, &error))
    }

    /// What a rank has told last about a topic, or tells within so many seconds.
    fn hear(&self, py: Python<'_>, rank: usize, topic: u64, seconds: f64) -> PyResult<Option<String>> {
        let (group, patience) = (self.here(py)?, duration(py, seconds)?);
        released(py, || group.hear(rank, topic, patience))?.map_err(|error| raised(py, &error))
    }

    /// A rank that has begun to send something with this tag which is not received here yet.
    fn sender(&self, py: Python<'_>, tag: u64) -> PyResult<Option<usize>> {
        let (group, tag) = (self.here(py)?, self::tag(py, tag)?);
        released(py, || group.sender(tag))?.map_err(|error| raised(py, &error))
    }

    /// How long an operation may take from now on.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.here(py)?.set_timeout(duration(py, seconds)?);
        Ok(())
    }

    /// Gives the group up, for everyone.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.here(py)?;
        py.detach(|| group.abort());
        Ok(())
    }

    /// Why the group is over, if it is.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let group = self.here(py)?;
        let failure = py.detach(|| group.failure());
        Ok(failure.map(|error| raised(py, &error).into_value(py).into_any()))
    }

    /// Takes nothing more, and leaves when what was begun has ended. A forked child can't do that for its parent.
    fn retire(&self, py: Python<'_>) {
        if let Some(group) = self.group.here() {
            py.detach(|| group.retire());
        }
    }
}

/// Waits until all groups that were retired have left, for so many seconds; the others are given up.
#[pyfunction]
pub(crate) fn finish_retired(py: Python<'_>, seconds: f64) -> PyResult<usize> {
    let patience = duration(py, seconds)?;
    Ok(py.detach(|| ringfold::finish_retired(patience)))
}

impl Group {
    fn of(group: ringfold::Group) -> Self {
        let (rank, world) = (group.rank(), group.world());
        Self { group: Owned::new(group), rank, world }
    }

    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&ringfold::Group> {
        self.group.require().map_err(|failure| refused(py, &failure.text))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.group.here() else { return };
        // Other Python threads run meanwhile; at the very end there are none.
        let left = Python::try_attach(|py| py.detach(|| group.retire()));
        if left.is_none() {
            group.retire();
        }
    }
}

/// All operations by name, with the arguments that each takes beside its buffers.
pub(crate) fn operations(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let table = PyDict::new(py);
    for (name, takes) in OPERATIONS {
        table.set_item(name, PyTuple::new(py, *takes)?)?;
    }
    Ok(table)
}

fn named(py: Python<'_>, op: &str, arguments: OpArguments) -> PyResult<GroupOp> {
    GroupOp::from_name(op, arguments).map_err(|error| raised(py, &error))
}

fn tag(py: Python<'_>, number: u64) -> PyResult<TransferTag> {
    u32::try_from(number).ok().and_then(TransferTag::new).ok_or_else(|| {
        refused(py, &format!("tag {number} is out of range: tags are 0 to {}", TransferTag::MAX))
    })
}

/// The type of elements that a number stands for.
pub(crate) fn element(py: Python<'_>, number: u8) -> PyResult<DType> {
    DType::from_number(number).ok_or_else(|| refused(py, &format!("{number} is no type of elements")))
}

/// The operation that a number stands for.
pub(crate) fn reduction(py: Python<'_>, number: u8) -> PyResult<ReduceOp> {
    ReduceOp::from_number(number).ok_or_else(|| refused(py, &format!("{number} is no reduce operation")))
}

pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() {
        return Err(refused(py, "a timeout is a number of seconds"));
    }
    // Longer than anyone lives is for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}
