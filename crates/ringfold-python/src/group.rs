//! Groups of fixed ranks, for Python.

use crate::bootstrap::bootstrap;
use crate::call::{
    SIGNALS_EVERY, detached, duration, finish_detached, is_interrupted, time_limit, try_detached,
};
use crate::exception::{ToException, connect_error, invalid_group_argument};
use crate::fork_guard::ForkGuard;
use crate::group_work::GroupWork;
use crate::operands::Operands;
use crate::settings::{self, Pairs};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ringfold::{DType, GroupOp, Media, OPERATIONS, OpArguments, Operation, ReduceOp, TransferTag};
use ringfold_bindings::tls_files;
use std::time::Duration;

/// A rank's membership in a group of fixed ranks.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Group {
    pub(crate) group: ForkGuard<ringfold::Group>,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    world: usize,
}

#[pymethods]
impl Group {
    /// Connects to the other ranks.
    #[staticmethod]
    #[pyo3(signature = (*, rank, world, name, at, timeout, connect_timeout, restores=false, media="auto", tls=None, settings=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords; only one caller")]
    fn connect(
        py: Python<'_>,
        rank: usize,
        world: usize,
        name: String,
        at: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        connect_timeout: f64,
        restores: bool,
        media: &str,
        tls: Option<Vec<String>>,
        settings: Pairs,
    ) -> PyResult<Self> {
        let media = media_of(py, media)?;
        let mut builder = ringfold::Group::builder()
            .rank(rank)
            .world(world)
            .name(name)
            .media(media)
            .settings(settings::given(&settings))
            .cancel_when(SIGNALS_EVERY, is_interrupted)
            .restore_on_failure(restores)
            .timeout(time_limit(py, timeout)?)
            .connect_timeout(time_limit(py, connect_timeout)?);
        if let Some(at) = at {
            builder = builder.bootstrap(bootstrap(at)?);
        }
        if let Some(paths) = tls {
            let files = tls_files::from_paths(&paths);
            builder = builder.tls(files.map_err(|error| invalid_group_argument(py, &error.text))?);
        }
        let group = detached(py, || builder.connect())?.map_err(|error| connect_error(py, &error))?;
        Ok(Self::of(group))
    }

    /// The name that was given to `connect` or `split`.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.group.of_group(py).map(|group| group.name().to_owned())
    }

    /// The name of each rank in errors.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.group.of_group(py).map(|group| group.members().to_vec())
    }

    /// Whether collectives use memory that all ranks share.
    #[getter]
    fn is_shared(&self, py: Python<'_>) -> PyResult<bool> {
        self.group.of_group(py).map(ringfold::Group::is_shared)
    }

    /// How many collectives of this rank have read shared buffers of the others in place.
    #[getter]
    fn shared_collectives(&self, py: Python<'_>) -> PyResult<u64> {
        self.group.of_group(py).map(ringfold::Group::shared_collectives)
    }

    /// Runs an operation to its end.
    #[pyo3(signature = (op, dtype, reduce, peer, counts, others, inputs, outputs, timeout, tag=0))]
    #[expect(clippy::too_many_arguments, reason = "called for each operation; an object would cost time")]
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
        let group = self.group.of_group(py)?;
        let (dtype, timeout) = (element_type(py, dtype)?, optional_limit(py, timeout)?);
        let op = operation(py, op, reduce, peer, counts, others, tag)?;
        let operands = Operands::of(inputs, outputs, op.may_be_in_place())?;
        try_detached(py, || operands.lend(|slices| group.run_slices(op, dtype, slices, timeout)))
    }

    /// Starts an operation. `keep` keeps its buffers alive.
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
        let group = self.group.of_group(py)?;
        let (dtype, timeout) = (element_type(py, dtype)?, optional_limit(py, timeout)?);
        let op = operation(py, op, reduce, peer, counts, others, tag)?;
        let operands = Operands::of(inputs, outputs, op.may_be_in_place())?;
        let (buffers, copy_back) = operands.keep(keep);
        let operation = Operation { op, dtype, buffers, timeout };
        let work = try_detached(py, || match copy_back {
            None => group.submit(operation),
            Some(copy_back) => group.submit_then(operation, copy_back),
        })?;
        Ok(GroupWork::new(work))
    }

    /// A group of some of the ranks; only they call this. A rank's new number is its index in `ranks`.
    #[pyo3(signature = (ranks, name, timeout, media, settings=None))]
    fn split(
        &self,
        py: Python<'_>,
        ranks: Vec<usize>,
        name: &str,
        timeout: f64,
        media: &str,
        settings: Option<Pairs>,
    ) -> PyResult<Self> {
        let (group, timeout, media) =
            (self.group.of_group(py)?, time_limit(py, timeout)?, media_of(py, media)?);
        let given = settings.map(|pairs| settings::given(&pairs));
        let child = detached(py, || group.split_by(&ranks, name, timeout, media, given))?;
        child.map(Self::of).map_err(|error| connect_error(py, &error))
    }

    /// Sends a note to ranks, beside all operations.
    fn send_note(&self, py: Python<'_>, ranks: Vec<usize>, topic: u64, text: String) -> PyResult<()> {
        let group = self.group.of_group(py)?;
        try_detached(py, || group.send_note(&ranks, topic, &text))
    }

    /// The last note of a rank about a topic; waits for one for so many seconds.
    fn recv_note(&self, py: Python<'_>, rank: usize, topic: u64, seconds: f64) -> PyResult<Option<String>> {
        let (group, timeout) = (self.group.of_group(py)?, duration(py, seconds)?);
        try_detached(py, || group.recv_note(rank, topic, timeout))
    }

    /// A rank that has begun a send with this tag which is not received here yet.
    fn sender(&self, py: Python<'_>, tag: u64) -> PyResult<Option<usize>> {
        let (group, tag) = (self.group.of_group(py)?, transfer_tag(py, tag)?);
        try_detached(py, || group.sender(tag))
    }

    /// Sets the timeout of later operations.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        self.group.of_group(py)?.set_timeout(time_limit(py, seconds)?);
        Ok(())
    }

    /// Aborts the group on all ranks.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.group.of_group(py)?;
        py.detach(|| group.abort());
        Ok(())
    }

    /// Why the group failed; None while it works.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let group = self.group.of_group(py)?;
        let failure = py.detach(|| group.failure());
        Ok(failure.map(|error| error.to_exception(py).into_value(py).into_any()))
    }

    /// Accepts no more operations, and leaves when those under way have ended. Does nothing in a forked child.
    fn retire(&self, py: Python<'_>) {
        if let Some(group) = self.group.get() {
            py.detach(|| group.retire());
        }
    }
}

/// Waits up to so many seconds until all retired groups have left, then aborts the rest.
#[pyfunction]
pub(crate) fn finish_retired(py: Python<'_>, seconds: f64) -> PyResult<usize> {
    let timeout = duration(py, seconds)?;
    Ok(py.detach(|| ringfold::finish_retired(timeout)))
}

impl Group {
    fn of(group: ringfold::Group) -> Self {
        let (rank, world) = (group.rank(), group.world());
        Self { group: ForkGuard::new(group), rank, world }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.group.get() {
            finish_detached(|| group.retire());
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

#[inline]
pub(crate) fn operation(
    py: Python<'_>,
    name: &str,
    reduce: u8,
    peer: i64,
    counts: Option<Vec<usize>>,
    others: Option<Vec<usize>>,
    tag: u64,
) -> PyResult<GroupOp> {
    let (reduce, tag) = (reduce_op(py, reduce)?, transfer_tag(py, tag)?);
    let arguments = OpArguments { reduce, peer, counts, others, tag };
    GroupOp::from_name(name, arguments).map_err(|error| error.to_exception(py))
}

fn media_of(py: Python<'_>, name: &str) -> PyResult<Media> {
    match name {
        "auto" => Ok(Media::Auto),
        "tcp" => Ok(Media::Tcp),
        "shared" => Ok(Media::Shared),
        other => {
            let text = format!("unknown medium {other:?}: must be auto, tcp or shared");
            Err(invalid_group_argument(py, &text))
        }
    }
}

fn transfer_tag(py: Python<'_>, number: u64) -> PyResult<TransferTag> {
    u32::try_from(number).ok().and_then(TransferTag::new).ok_or_else(|| {
        invalid_group_argument(py, &format!("invalid tag {number}: must be 0..={}", TransferTag::MAX))
    })
}

/// The element type with this number.
pub(crate) fn element_type(py: Python<'_>, number: u8) -> PyResult<DType> {
    DType::from_number(number)
        .ok_or_else(|| invalid_group_argument(py, &format!("unknown element type {number}")))
}

/// The reduce operation with this number.
pub(crate) fn reduce_op(py: Python<'_>, number: u8) -> PyResult<ReduceOp> {
    ReduceOp::from_number(number)
        .ok_or_else(|| invalid_group_argument(py, &format!("unknown reduce operation {number}")))
}

/// The time limit of an operation in seconds, if there is one.
pub(crate) fn optional_limit(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds.map(|seconds| time_limit(py, seconds)).transpose()
}
