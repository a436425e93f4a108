//! All-reduces captured in a graph, to time them without the time that the host needs to queue them.

use super::{AllReduceCall, CallOptions, DeviceArena, FoldKernels};
use crate::api::{self, Api, Code, DriverHandle};
use crate::context::Context;
use crate::device_memory::DeviceMemory;
use crate::error::{CudaError, check};
use crate::event::Event;
use crate::stream::Stream;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// How long dropping a graph waits for its kernels.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Several equal all-reduces in a graph, with its own stream. It keeps all that its kernels use.
pub struct AllReduceGraph {
    executable: Executable,
    stream: Stream,
    calls: u32,
    used: Arc<(Arc<DeviceArena>, Arc<FoldKernels>, [DeviceMemory; 2])>,
}

/// An executable graph.
struct Executable {
    context: Context,
    handle: DriverHandle,
}

impl DeviceArena {
    /// Captures an all-reduce, so many times one after the other. All ranks must do so.
    pub fn capture_all_reduces(
        self: &Arc<Self>,
        kernels: &Arc<FoldKernels>,
        call: &AllReduceCall<'_>,
        calls: u32,
    ) -> Result<AllReduceGraph, CudaError> {
        let context = self.gpu.context();
        let api = context.api;
        let unsupported = || CudaError::Unsupported("the CUDA driver does not capture graphs".into());
        let begin = api.begin_capture.ok_or_else(unsupported)?;
        let end = api.end_capture.ok_or_else(unsupported)?;
        let instantiate = api.instantiate_graph.ok_or_else(unsupported)?;
        let _current = context.current()?;
        let stream = self.gpu.create_stream()?;
        let call = AllReduceCall { common: CallOptions { is_captured: true, ..call.common }, ..call.clone() };
        // SAFETY: the stream exists, and nothing is queued on it.
        let code = unsafe { begin(stream.handle, api::CAPTURE_RELAXED) };
        check(api, "capturing a CUDA graph", code)?;
        let queued = (0..calls).try_for_each(|_| self.all_reduce(kernels, &call, &stream));
        let mut graph = 0;
        // SAFETY: the graph can be written, and the stream is being captured.
        let code = unsafe { end(stream.handle, &raw mut graph) };
        let captured = queued.and_then(|()| check(api, "capturing a CUDA graph", code));
        let mut executable = Executable { context, handle: 0 };
        let instantiated = captured.and_then(|()| {
            // SAFETY: the handle can be written, and the graph exists.
            let code = unsafe { instantiate(&raw mut executable.handle, graph, 0) };
            check(api, "instantiating a CUDA graph", code)
        });
        destroy(api.destroy_graph, graph);
        instantiated?;
        let memory = [call.source.clone(), call.target.clone()];
        let used = Arc::new((self.clone(), kernels.clone(), memory));
        Ok(AllReduceGraph { executable, stream, calls, used })
    }
}

impl AllReduceGraph {
    /// The time of a call on this rank's device, over so many launches of the graph. All ranks must do so.
    ///
    /// One more launch, which does not count, lets the ranks start together.
    pub fn time(&self, launches: u32, deadline: Instant) -> Result<Duration, CudaError> {
        let context = self.executable.context;
        let _current = context.current()?;
        let event = || Event::open(context, api::EVENT_WITH_TIMING);
        let (start, end) = (event()?, event()?);
        self.launch()?;
        self.stream.record(&start)?;
        (0..launches).try_for_each(|_| self.launch())?;
        self.stream.record(&end)?;
        end.wait_until(deadline)?;
        Ok(end.elapsed_since(&start)? / (launches * self.calls).max(1))
    }

    fn launch(&self) -> Result<(), CudaError> {
        let context = self.executable.context;
        let unsupported = || CudaError::Unsupported("the CUDA driver does not launch graphs".into());
        let launch = context.api.launch_graph.ok_or_else(unsupported)?;
        // SAFETY: graph and stream exist. What its kernels use is kept until they have ended, as for `all_reduce`.
        let call = |_: &Api| unsafe { launch(self.executable.handle, self.stream.handle) };
        context.call("launching a CUDA graph", call)
    }
}

impl Drop for AllReduceGraph {
    fn drop(&mut self) {
        if self.stream.synchronize(Instant::now() + CLOSING_MAX).is_err() {
            // Kernels may still run: what they use is leaked.
            core::mem::forget(self.used.clone());
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.current() {
            destroy(self.context.api.destroy_executable, self.handle);
        }
    }
}

/// Destroys a graph, if there is one.
fn destroy(function: Option<unsafe extern "C" fn(DriverHandle) -> Code>, handle: DriverHandle) {
    if let Some(destroy) = function.filter(|_| handle != 0) {
        // SAFETY: the handle exists and is no longer used; the driver completes what was launched.
        let _ = unsafe { destroy(handle) };
    }
}

debug_as!(AllReduceGraph, self => "a CUDA graph of {} all-reduces", self.calls);
