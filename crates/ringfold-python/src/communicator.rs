//! A peer's part in a run, for Python.

use crate::call::{SIGNALS_EVERY, blocking, is_interrupted};
use crate::error::raised;
use crate::owned::Owned;
use crate::tensor::{Device, Tensor};
use crate::work::Work;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use ringfold::{AllReduce, Buffers, Memory, Reduction, StateTensor};
use ringfold_bindings::alias::aliases;
use ringfold_bindings::operands::{Operands, require_apart};
use ringfold_bindings::result::{During, Failure};
use ringfold_bindings::session::Session;
use ringfold_bindings::{join_token, number};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A communicator.
#[pyclass(frozen, module = "ringfold._native")]
pub(crate) struct Communicator {
    session: Owned<Arc<Session>>,
    name: String,
}

/// What an all-reduce is asked to do, as numbers of `pccl.h`.
#[derive(FromPyObject)]
struct Order<'py> {
    send: Bound<'py, PyAny>,
    recv: Bound<'py, PyAny>,
    op: i32,
    tag: u64,
    /// None for the tensor's own.
    dtype: Option<i32>,
    /// How many, where the user says so.
    elements: Option<usize>,
    algorithm: i32,
    quantized: i32,
    weight: Option<f64>,
    deadline: Option<f64>,
}

/// The world that took part, and the bytes sent and received.
type Reduced = (u32, u64, u64);

#[pymethods]
impl Communicator {
    /// Nothing is dialled yet.
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
        patience: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = ringfold::Communicator::builder(address)
            .peer_group(peer_group)
            .streams(streams)
            .site(site)
            .watch(SIGNALS_EVERY, is_interrupted);
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
        if let Some(patience) = patience {
            builder = builder.connect_patience(duration(patience, "connect_timeout")?);
        }
        blocking(py, || {
            let token = token.map_or_else(join_token::from_environment, |token| Ok(Some(token)))?;
            let builder = match token {
                Some(token) => builder.token(token),
                None => builder,
            };
            let communicator = builder.build().map_err(|e| Failure::of(&e, During::Creation))?;
            let name = communicator.name().to_owned();
            Ok(Self { session: Owned::new(Arc::new(Session::new(communicator))), name })
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.session.require()?.connect())
    }

    fn update_topology(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.session.require()?.update_topology())
    }

    fn optimize_topology(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, || self.session.require()?.optimize_topology())
    }

    fn are_peers_pending(&self, py: Python<'_>) -> PyResult<bool> {
        blocking(py, || self.session.require()?.are_peers_pending())
    }

    fn attribute(&self, py: Python<'_>, number: i32) -> PyResult<u32> {
        blocking(py, || self.session.require()?.attribute(number))
    }

    /// Reduces, and returns when that has ended.
    fn all_reduce(&self, py: Python<'_>, order: Order<'_>) -> PyResult<Reduced> {
        let (operands, reduction) = order.understood()?;
        let reduced = blocking(py, || {
            let session = self.session.require()?;
            let _taken = session.in_flight.take([operands.tag])?;
            session.communicator.reduce(reduction).map_err(|e| session.failed(&e, During::Reduce))
        })?;
        Ok((reduced.world, reduced.tx_bytes, reduced.rx_bytes))
    }

    /// Starts to reduce.
    fn all_reduce_async(&self, py: Python<'_>, order: Order<'_>) -> PyResult<Work> {
        let (operands, Reduction { dtype, buffers, options }) = order.understood()?;
        blocking(py, || {
            let session = self.session.require()?;
            let taken = session.in_flight.take([operands.tag])?;
            let work = session.communicator.all_reduce_memory(dtype, buffers, options);
            taken.launched(work.map_err(|e| session.failed(&e, During::Reduce))?);
            Ok(Work::new(session.clone(), operands.tag))
        })
    }

    /// Reduces all, and again what was aborted, until all are done.
    fn all_reduce_many(
        &self,
        py: Python<'_>,
        orders: Vec<Order<'_>>,
        in_flight_max: usize,
    ) -> PyResult<Reduced> {
        let understood = orders.iter().map(Order::understood).collect::<PyResult<Vec<_>>>()?;
        let (operands, reductions): (Vec<_>, Vec<_>) = understood.into_iter().unzip();
        let reduced = blocking(py, || {
            let session = self.session.require()?;
            require_apart(&operands)?;
            let _taken = session.in_flight.take(operands.iter().map(|o| o.tag))?;
            let done = session.communicator.all_reduce_many(reductions, in_flight_max);
            done.map_err(|e| session.failed(&e, During::Reduce))
        })?;
        Ok((reduced.world, reduced.tx_bytes, reduced.rx_bytes))
    }

    /// Makes the entries (key, tensor, whether contents may differ) equal on all peers. Returns the revision, and the
    /// bytes sent and received.
    fn sync_shared_state(
        &self,
        py: Python<'_>,
        revision: u64,
        entries: Vec<(String, Bound<'_, Tensor>, bool)>,
        strategy: i32,
    ) -> PyResult<(u64, u64, u64)> {
        let strategy = number::strategy(strategy).map_err(|f| raised(py, &f))?;
        let spans: Vec<_> =
            entries.iter().map(|(key, t, allow)| (key.as_str(), t.get().span(), *allow)).collect();
        let aliases = aliases(&spans).map_err(|f| PyValueError::new_err(f.text))?;
        let tensor = |((key, tensor, allow), alias): (&(String, Bound<'_, Tensor>, bool), bool)| {
            let memory = match tensor.get().place() {
                Device::Cuda => tensor.get().device_memory(py, key)?.into(),
                // Memory has one holder; see `alias`.
                Device::Cpu if alias => Memory::from(tensor.get().memory(py).as_slice().to_vec()).into(),
                Device::Cpu => tensor.get().memory(py).into(),
            };
            let (key, dtype, allow_content_inequality) = (key.clone(), tensor.get().elements(), *allow);
            Ok(StateTensor { key, dtype, memory, allow_content_inequality })
        };
        let tensors = entries.iter().zip(aliases).map(tensor).collect::<PyResult<Vec<_>>>()?;
        let info = blocking(py, || {
            let session = self.session.require()?;
            session.require_awaited()?;
            let synced = session.communicator.sync_memory(revision, tensors, strategy);
            synced.map_err(|e| session.failed(&e, During::Sync))
        })?;
        Ok((info.revision, info.tx_bytes, info.rx_bytes))
    }

    /// Says goodbye. A forked child can't do that for its parent.
    fn leave(&self, py: Python<'_>) {
        if let Some(session) = self.session.here() {
            py.detach(|| session.leave());
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let Some(session) = self.session.here() else { return };
        // Other Python threads run while we say goodbye; at the very end there are none.
        let left = Python::try_attach(|py| py.detach(|| session.leave()));
        if left.is_none() {
            session.leave();
        }
    }
}

impl Order<'_> {
    fn understood(&self) -> PyResult<(Operands, Reduction)> {
        let py = self.send.py();
        let argument = |failure: Failure| raised(py, &failure);
        let mut send = Tensor::of(&self.send, "send")?;
        let recv =
            if self.send.is(&self.recv) { Ok(send.another(py)) } else { Tensor::of(&self.recv, "recv") };
        let mut recv = recv?.writable("recv")?;
        if let Some(dtype) = self.dtype {
            let dtype = number::dtype(dtype).map_err(argument)?;
            send = send.seen_as(dtype, "send")?;
            recv = recv.seen_as(dtype, "recv")?;
        }
        if send.elements() != recv.elements() {
            return Err(PyTypeError::new_err(format!(
                "send has elements of {}, but recv of {}",
                send.elements(),
                recv.elements()
            )));
        }
        if send.len() != recv.len() {
            return Err(PyValueError::new_err(format!(
                "send has {} elements, but recv {}",
                send.len(),
                recv.len()
            )));
        }
        if let Some(count) = self.elements
            && count != send.len()
        {
            return Err(PyValueError::new_err(format!(
                "the descriptor says {count} elements, but send has {}",
                send.len()
            )));
        }
        let mut options = AllReduce::new(number::operation(self.op).map_err(argument)?);
        if let Some(quantization) = number::quantization(self.algorithm, self.quantized).map_err(argument)? {
            options = options.quantized(quantization);
        }
        if let Some(weight) = self.weight {
            options = options.weight(weight);
        }
        if let Some(deadline) = self.deadline {
            options = options.deadline(duration(deadline, "deadline")?);
        }
        let dtype = send.elements();
        let operands =
            Operands::checked(send.span(), recv.span(), dtype, self.tag, options).map_err(argument)?;
        let buffers = match (send.place(), recv.place()) {
            (Device::Cpu, Device::Cpu) if operands.is_in_place() => Buffers::InPlace(recv.memory(py)),
            (Device::Cpu, Device::Cpu) => {
                Buffers::OutOfPlace { source: send.view(py), target: recv.memory(py) }
            }
            (Device::Cuda, Device::Cuda) => Buffers::Device {
                source: send.device_memory(py, "send")?,
                target: recv.device_memory(py, "recv")?,
            },
            _ => return Err(PyValueError::new_err("send and recv are not on the same kind of device")),
        };
        Ok((operands, Reduction { dtype, buffers, options: operands.options }))
    }
}

fn address_of(text: &str) -> PyResult<IpAddr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("{text:?} is no IP address")))
}

fn duration(seconds: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name} is a number of seconds, and not {seconds}")))
}
