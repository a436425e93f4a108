//! Runs operations over a group's links.

use super::buffers::{on_host, reduces};
use super::core::Core;
use super::driver::GroupEnded;
use super::operation::{BufferLengths, GroupBuffers, GroupOp, OperationRequest};
use crate::Error;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::CallId;
use std::time::Instant;

impl Core {
    pub(super) fn run_on_links(
        &self,
        request: &OperationRequest,
        buffers: GroupBuffers,
        deadline: Instant,
        cancel: Option<&CancelToken>,
    ) -> (Result<(), Error>, Option<GroupBuffers>) {
        let kept = match &buffers {
            GroupBuffers::OutOfPlace { output, .. } if self.restores && reduces(request) => {
                output.first().map(|output| output.as_slice().to_vec())
            }
            _ => None,
        };
        let (buffers, unpack) = on_host(buffers, request.buffer_use);
        let started = self.engine.with_waiter(|driver| driver.start(request, buffers, deadline, true));
        let call = match started {
            Ok(Ok(call)) => call,
            Ok(Err(failed)) => {
                let (error, buffers) = *failed;
                return (Err(error), Some(unpack.finish(Some(buffers), false)));
            }
            Err(error) => return (Err(error), None),
        };
        let GroupEnded { result, buffers } = self.wait_cancellable(call, cancel);
        let mut buffers = unpack.finish(buffers, result.is_ok());
        if let (Err(_), Some(kept), GroupBuffers::OutOfPlace { output, .. }) = (&result, kept, &mut buffers)
            && let Some(output) = output.first_mut()
        {
            output.as_mut_slice().copy_from_slice(&kept);
        }
        (result, Some(buffers))
    }

    /// Waits for the end of a call. Cancelling the wait fails the group, which ends the call.
    fn wait_cancellable(&self, call: CallId, cancel: Option<&CancelToken>) -> GroupEnded {
        let Some(cancel) = cancel else { return self.engine.wait(call) };
        cancel.wait(|until| self.engine.wait_until(call, Some(until))).unwrap_or_else(|| {
            self.abort();
            GroupEnded { result: Err(Error::Interrupted), ..self.engine.wait(call) }
        })
    }

    /// Runs a barrier over the links.
    pub(super) fn barrier_on_links(&self, until: Instant) {
        let none = BufferLengths::OutOfPlace { input: 0, output: 0 };
        let buffers = GroupBuffers::OutOfPlace { input: Vec::new(), output: Vec::new() };
        if let Ok(request) = self.context.request(&GroupOp::Barrier, DType::U8, none) {
            // If it fails, the group has, and its driver has posted why.
            let _ = self.run_on_links(&request, buffers, until, self.cancel.as_ref());
        }
    }
}
