//! Operations over a group's links.

use super::buffers::{on_host, reduces};
use super::core::Core;
use super::driver::GroupEnded;
use super::operation::{GroupBuffers, GroupOp, Lengths, Request};
use crate::Error;
use ringfold_fabric::waiter::CancelToken;
use ringfold_proto::dtype::DType;
use ringfold_proto::id::CallId;
use std::time::Instant;

impl Core {
    pub(super) fn run_on_links(
        &self,
        request: &Request,
        buffers: GroupBuffers,
        deadline: Instant,
        watch: Option<&CancelToken>,
    ) -> (Result<(), Error>, Option<GroupBuffers>) {
        let kept = match &buffers {
            GroupBuffers::Apart { output, .. } if self.restores && reduces(request) => {
                output.first().map(|output| output.as_slice().to_vec())
            }
            _ => None,
        };
        let (buffers, unpack) = on_host(buffers, request.side);
        let started = self.engine.with_waiter(|driver| driver.start(request, buffers, deadline));
        let call = match started {
            Ok(Ok(call)) => call,
            Ok(Err(failed)) => {
                let (error, buffers) = *failed;
                return (Err(error), Some(unpack.finish(Some(buffers), false)));
            }
            Err(error) => return (Err(error), None),
        };
        let GroupEnded { result, buffers } = self.wait_watched(call, watch);
        let mut buffers = unpack.finish(buffers, result.is_ok());
        if let (Err(_), Some(kept), GroupBuffers::Apart { output, .. }) = (&result, kept, &mut buffers)
            && let Some(output) = output.first_mut()
        {
            output.as_mut_slice().copy_from_slice(&kept);
        }
        (result, Some(buffers))
    }

    /// Waits for the end of a call; whoever has to leave off gives the group up, which ends it.
    fn wait_watched(&self, call: CallId, watch: Option<&CancelToken>) -> GroupEnded {
        let Some(watch) = watch else { return self.engine.wait(call) };
        watch.wait(|until| self.engine.wait_until(call, Some(until))).unwrap_or_else(|| {
            self.give_up();
            GroupEnded { result: Err(Error::Interrupted), ..self.engine.wait(call) }
        })
    }

    /// Waits over the links until all ranks have come.
    pub(super) fn meet_on_links(&self, until: Instant) {
        let none = Lengths::Apart { input: 0, output: 0 };
        let buffers = GroupBuffers::Apart { input: Vec::new(), output: Vec::new() };
        if let Ok(request) = self.standing.request(&GroupOp::Barrier, DType::U8, none)
            && let (Err(error), _) = self.run_on_links(&request, buffers, until, self.watch.as_ref())
        {
            tracing::debug!(%error, "the group failed as soon as it was formed");
        }
    }
}
