//! Communicators of an elastic run, for Python.

use crate::call::{SIGNALS_EVERY, finish_detached, is_interrupted, try_detached};
use crate::exception::ToException;
use crate::fork_guard::ForkGuard;
use crate::settings::{self, Pairs};
use crate::tensor::{Device, Tensor};
use crate::work::Work;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ringfold::{AllReduce, Buffers, Memory, Reduction, Replica, ReplicaId, StateTensor, SyncCompany};
use ringfold_bindings::alias::find_aliases;
use ringfold_bindings::all_reduce_args::{AllReduceArgs, require_disjoint};
use ringfold_bindings::communicator_handle::CommunicatorHandle;
use ringfold_bindings::result::{ApiCall, CallError};
use ringfold_bindings::{enum_values, tls_files};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A peer's membership in a run.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Communicator {
    handle: ForkGuard<Arc<CommunicatorHandle>>,
    #[pyo3(get)]
    name: String,
}

/// The arguments of an all-reduce. Numbers are those of `pccl.h`.
#[derive(FromPyObject)]
struct AllReduceRequest<'py> {
    send: Bound<'py, PyAny>,
    recv: Bound<'py, PyAny>,
    op: i32,
    tag: u64,
    /// None is the tensor's own.
    dtype: Option<i32>,
    /// The expected number of elements, if the user gave one.
    elements: Option<usize>,
    algorithm: i32,
    quantized: i32,
    weight: Option<f64>,
    deadline: Option<f64>,
    error_feedback: bool,
    reproducible: bool,
    resume: bool,
}

/// Bytes sent and received, and the same within this host.
type TrafficNumbers = (u64, u64, u64, u64);

/// The total, and the id, name and traffic of each peer.
type TrafficTuple = (TrafficNumbers, Vec<(u128, String, TrafficNumbers)>);

/// World size, bytes sent, bytes received.
type Reduced = (u32, u64, u64);

#[pymethods]
impl Communicator {
    /// A communicator that is not connected yet.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords; only one caller")]
    fn new(
        py: Python<'_>,
        address: String,
        peer_group: u32,
        streams: u16,
        name: Option<String>,
        token: Option<String>,
        ports: Option<(u16, u16)>,
        bind: Option<String>,
        advertise: Vec<String>,
        site: u32,
        connect_timeout: Option<f64>,
        max_upload: Option<String>,
        max_download: Option<String>,
        volunteer_relay: Option<bool>,
        tls: Option<Vec<String>>,
        replica: Option<(u128, u32)>,
        settings: Pairs,
    ) -> PyResult<Self> {
        let mut builder = ringfold::Communicator::builder(address)
            .peer_group(peer_group)
            .streams(streams)
            .settings(settings::given(&settings))
            .cancel_when(SIGNALS_EVERY, is_interrupted);
        if site > 0 {
            builder = builder.site(site);
        }
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some((first, last)) = ports {
            builder = builder.listen_ports(first..=last);
        }
        if let Some(bind) = bind {
            builder = builder.bind(address_of(&bind)?);
        }
        for text in advertise {
            builder = match text.parse::<SocketAddr>() {
                Ok(address) => builder.advertise_at(address),
                Err(_) => builder.advertise(address_of(&text)?),
            };
        }
        if let Some(seconds) = connect_timeout {
            builder = builder.connect_timeout(duration(seconds, "connect_timeout")?);
        }
        if let Some(cap) = bandwidth(max_upload, "max_upload")? {
            builder = builder.max_upload(cap);
        }
        if let Some(cap) = bandwidth(max_download, "max_download")? {
            builder = builder.max_download(cap);
        }
        if let Some(volunteers) = volunteer_relay {
            builder = builder.volunteer_relay(volunteers);
        }
        if let Some((id, ranks)) = replica {
            builder = builder.replica(Replica { id: ReplicaId(id), ranks });
        }
        try_detached(py, || -> Result<_, CallError> {
            let mut builder = builder;
            if let Some(paths) = tls {
                builder = builder.tls(tls_files::from_paths(&paths)?);
            }
            let communicator = builder.build().map_err(|e| CallError::from_error(&e, ApiCall::Creation))?;
            let name = communicator.name().to_owned();
            Ok(Self { handle: ForkGuard::new(Arc::new(CommunicatorHandle::new(communicator))), name })
        })
    }

    fn connect(&self, py: Python<'_>) -> PyResult<()> {
        try_detached(py, || self.handle.require()?.connect())
    }

    fn update_topology(&self, py: Python<'_>) -> PyResult<()> {
        try_detached(py, || self.handle.require()?.update_topology())
    }

    fn optimize_topology(&self, py: Python<'_>) -> PyResult<()> {
        try_detached(py, || self.handle.require()?.optimize_topology())
    }

    fn are_peers_pending(&self, py: Python<'_>) -> PyResult<bool> {
        try_detached(py, || self.handle.require()?.are_peers_pending())
    }

    fn attribute(&self, py: Python<'_>, number: i32) -> PyResult<u32> {
        try_detached(py, || self.handle.require()?.attribute(number))
    }

    /// The id and name of each member of the group, oldest first.
    fn members(&self, py: Python<'_>) -> PyResult<Vec<(u128, String)>> {
        let members = try_detached(py, || -> Result<_, CallError> {
            Ok(self.handle.require()?.communicator.members())
        })?;
        Ok(members.into_iter().map(|member| (member.peer, member.name)).collect())
    }

    /// The id of this peer; none before it is connected.
    fn id(&self, py: Python<'_>) -> PyResult<Option<u128>> {
        try_detached(py, || -> Result<_, CallError> { Ok(self.handle.require()?.communicator.id()) })
    }

    /// What was sent and received in total, and for each peer (id, name).
    fn traffic(&self, py: Python<'_>) -> PyResult<TrafficTuple> {
        let report = try_detached(py, || -> Result<_, CallError> {
            Ok(self.handle.require()?.communicator.traffic())
        })?;
        let numbers =
            |t: ringfold::Traffic| -> TrafficNumbers { (t.sent, t.received, t.local_sent, t.local_received) };
        let peers = report.peers.into_iter().map(|peer| (peer.peer, peer.name, numbers(peer.traffic)));
        Ok((numbers(report.total), peers.collect()))
    }

    /// Forgets the quantisation errors of a tag, or of all.
    #[pyo3(signature = (tag))]
    fn clear_error_feedback(&self, py: Python<'_>, tag: Option<u64>) -> PyResult<()> {
        try_detached(py, || -> Result<_, CallError> {
            self.handle.require()?.communicator.clear_error_feedback(tag);
            Ok(())
        })
    }

    /// Runs an all-reduce to its end.
    fn all_reduce(&self, py: Python<'_>, request: AllReduceRequest<'_>) -> PyResult<Reduced> {
        let (args, reduction) = request.parse()?;
        let reduced = try_detached(py, || {
            let handle = self.handle.require()?;
            let _reservation = handle.in_flight.reserve([args.tag])?;
            handle.communicator.reduce(reduction).map_err(|e| handle.record_error(&e, ApiCall::Reduce))
        })?;
        Ok((reduced.world, reduced.tx_bytes, reduced.rx_bytes))
    }

    /// Starts an all-reduce.
    fn all_reduce_async(&self, py: Python<'_>, request: AllReduceRequest<'_>) -> PyResult<Work> {
        let (args, reduction) = request.parse()?;
        try_detached(py, || -> Result<_, CallError> {
            let handle = self.handle.require()?;
            let reservation = handle.in_flight.reserve([args.tag])?;
            let work = handle.communicator.reduce_async(reduction);
            reservation.keep(work.map_err(|e| handle.record_error(&e, ApiCall::Reduce))?);
            Ok(Work::new(handle.clone(), args.tag))
        })
    }

    /// Runs several all-reduces, and repeats aborted ones, until all are done.
    fn all_reduce_many(
        &self,
        py: Python<'_>,
        requests: Vec<AllReduceRequest<'_>>,
        in_flight_max: usize,
    ) -> PyResult<Reduced> {
        let parsed = requests.iter().map(AllReduceRequest::parse).collect::<PyResult<Vec<_>>>()?;
        let (args, reductions): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
        let reduced = try_detached(py, || {
            let handle = self.handle.require()?;
            require_disjoint(&args)?;
            let _reservation = handle.in_flight.reserve(args.iter().map(|args| args.tag))?;
            let done = handle.communicator.all_reduce_many(reductions, in_flight_max);
            done.map_err(|e| handle.record_error(&e, ApiCall::Reduce))
        })?;
        Ok((reduced.world, reduced.tx_bytes, reduced.rx_bytes))
    }

    /// Makes the entries (key, tensor, whether contents may differ) equal on all peers.
    ///
    /// Returns the revision, the bytes sent and the bytes received.
    fn sync_shared_state(
        &self,
        py: Python<'_>,
        revision: u64,
        entries: Vec<(String, Bound<'_, Tensor>, bool)>,
        strategy: i32,
        beside_collectives: bool,
    ) -> PyResult<(u64, u64, u64)> {
        let strategy = enum_values::parse_strategy(strategy).map_err(|e| e.to_exception(py))?;
        let ranges: Vec<_> =
            entries.iter().map(|(key, t, allow)| (key.as_str(), t.get().range(), *allow)).collect();
        let aliases = find_aliases(&ranges).map_err(|e| PyValueError::new_err(e.text))?;
        let tensor = |((key, tensor, allow), alias): (&(String, Bound<'_, Tensor>, bool), bool)| {
            let memory = match tensor.get().device_kind() {
                Device::Cuda => tensor.get().device_memory(py, key)?.into(),
                // Memory has one owner; see `alias`.
                Device::Cpu if alias => Memory::from(tensor.get().memory(py).as_slice().to_vec()).into(),
                Device::Cpu => tensor.get().memory(py).into(),
            };
            let (key, dtype, allow_content_inequality) = (key.clone(), tensor.get().elements(), *allow);
            Ok(StateTensor { key, dtype, memory, allow_content_inequality })
        };
        let tensors = entries.iter().zip(aliases).map(tensor).collect::<PyResult<Vec<_>>>()?;
        let info = try_detached(py, || {
            let handle = self.handle.require()?;
            let company = match beside_collectives {
                true => SyncCompany::Collectives,
                false => handle.require_awaited().map(|()| SyncCompany::Alone)?,
            };
            let synced = handle.communicator.sync_memory(revision, tensors, strategy, company);
            synced.map_err(|e| handle.record_error(&e, ApiCall::Sync))
        })?;
        Ok((info.revision, info.tx_bytes, info.rx_bytes))
    }

    /// Leaves the run. Does nothing in a forked child.
    fn leave(&self, py: Python<'_>) {
        if let Some(handle) = self.handle.get() {
            py.detach(|| handle.leave());
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.get() {
            finish_detached(|| {
                handle.leave();
            });
        }
    }
}

impl AllReduceRequest<'_> {
    /// Checks the arguments.
    fn parse(&self) -> PyResult<(AllReduceArgs, Reduction)> {
        let py = self.send.py();
        let argument = |error: CallError| error.to_exception(py);
        // In place the caller has passed one tensor, perhaps under another name.
        let is_in_place = self.send.is(&self.recv);
        let [sent, received] = if is_in_place { ["tensor"; 2] } else { ["send", "recv"] };
        let mut send = Tensor::of(&self.send, sent)?;
        let recv = if is_in_place { Ok(send.clone_ref(py)) } else { Tensor::of(&self.recv, received) };
        let mut recv = recv?.writable(received)?;
        if let Some(dtype) = self.dtype {
            let dtype = enum_values::parse_dtype(dtype).map_err(argument)?;
            send = send.reinterpret(dtype, sent)?;
            recv = recv.reinterpret(dtype, received)?;
        }
        if send.elements() != recv.elements() {
            let (send, recv) = (send.elements(), recv.elements());
            let text = format!("element types differ: send has {send}, recv has {recv}");
            return Err(PyTypeError::new_err(text));
        }
        if send.len() != recv.len() {
            let text = format!("lengths differ: send has {} elements, recv has {}", send.len(), recv.len());
            return Err(PyValueError::new_err(text));
        }
        if let Some(count) = self.elements
            && count != send.len()
        {
            let text = format!("the descriptor says {count} elements, but {sent} has {}", send.len());
            return Err(PyValueError::new_err(text));
        }
        let mut options = AllReduce::new(enum_values::parse_reduce_op(self.op).map_err(argument)?);
        if let Some(quantization) =
            enum_values::parse_quantization(self.algorithm, self.quantized).map_err(argument)?
        {
            options = options.quantized(quantization);
        }
        if self.error_feedback {
            options = options.error_feedback();
        }
        if self.reproducible {
            options = options.reproducible();
        }
        if self.resume {
            options = options.resume();
        }
        if let Some(weight) = self.weight {
            options = options.weight(weight);
        }
        if let Some(deadline) = self.deadline {
            options = options.deadline(duration(deadline, "deadline")?);
        }
        let dtype = send.elements();
        let args =
            AllReduceArgs::new(send.range(), recv.range(), dtype, self.tag, options).map_err(argument)?;
        let buffers = match (send.device_kind(), recv.device_kind()) {
            (Device::Cpu, Device::Cpu) if args.is_in_place() => Buffers::InPlace(recv.memory(py)),
            (Device::Cpu, Device::Cpu) => {
                Buffers::OutOfPlace { source: send.view(py), target: recv.memory(py) }
            }
            (Device::Cuda, Device::Cuda) => Buffers::Device {
                source: send.device_memory(py, sent)?,
                target: recv.device_memory(py, received)?,
            },
            _ => return Err(PyValueError::new_err("send and recv are not on the same kind of device")),
        };
        Ok((args, Reduction { dtype, buffers, options: args.options }))
    }
}

fn address_of(text: &str) -> PyResult<IpAddr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("invalid IP address {text:?}")))
}

/// A cap; none if there is no text.
fn bandwidth(text: Option<String>, name: &str) -> PyResult<Option<ringfold::Bandwidth>> {
    let parsed = text.map(|text| text.parse());
    parsed.transpose().map_err(|error: ringfold::InvalidBandwidth| {
        PyValueError::new_err(format!("invalid {name}: {error}"))
    })
}

fn duration(seconds: f64, name: &str) -> PyResult<Duration> {
    // What is sent is 32 bits of milliseconds.
    let max = f64::from(u32::MAX / 1000);
    let given = if seconds <= max { Duration::try_from_secs_f64(seconds).ok() } else { None };
    let text = || format!("invalid {name} {seconds}: must be a number of seconds from 0 to {max}");
    given.ok_or_else(|| PyValueError::new_err(text()))
}
