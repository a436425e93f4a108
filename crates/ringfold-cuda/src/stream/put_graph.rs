//! Small puts within a device: a graph of one kernel node that is updated and relaunched.
//!
//! On an H200 an update and a launch take 2.7 µs, the launch of a kernel 4.7, and the driver's copy call and the
//! write of a word 7.5.

use super::put_kernels::PutKernels;
use crate::api::{DriverHandle, KernelNodeParams, SUCCESS};
use crate::context::Context;
use core::ffi::c_void;
use std::sync::Arc;

/// A copy between addresses that the device can access, and a word to set afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    /// The address of the word and its value.
    pub(crate) word: Option<(u64, u64)>,
}

/// A graph with one put. Updating it does not affect earlier launches.
pub(super) struct PutGraph {
    context: Context,
    kernels: Arc<PutKernels>,
    graph: DriverHandle,
    node: DriverHandle,
    executable: DriverHandle,
}

impl PutGraph {
    /// Creates a graph. None if the driver does not support it.
    pub(super) fn new(context: Context) -> Option<Self> {
        let api = context.api;
        let (create, add, instantiate) = (api.create_graph?, api.add_kernel?, api.instantiate_graph?);
        let (Some(_), Some(_)) = (api.change_kernel, api.launch_graph) else { return None };
        let kernels = PutKernels::of(context.ordinal)?;
        let _current = context.current().ok()?;
        let mut new = Self { context, kernels: kernels.clone(), graph: 0, node: 0, executable: 0 };
        let nothing = Put { to: 0, from: 0, bytes: 0, word: None };
        let is_created = with_params(&kernels, &nothing, |params| {
            // SAFETY: the outputs can be written, and each handle exists when it is used. On failure the drop destroys
            // what was created. The driver copies the parameters.
            unsafe {
                create(&raw mut new.graph, 0) == SUCCESS
                    && add(&raw mut new.node, new.graph, core::ptr::null(), 0, params) == SUCCESS
                    && instantiate(&raw mut new.executable, new.graph, 0) == SUCCESS
            }
        });
        is_created.unwrap_or(false).then_some(new)
    }

    /// Queues a put on a stream. False, with nothing queued, if it is too large or the driver rejects it.
    ///
    /// # Safety
    /// Both ranges and the word stay allocated until the put is done, and are not used by work that is not ordered with
    /// it. The stream belongs to the context, which is current.
    pub(super) unsafe fn launch(&mut self, put: &Put, stream: DriverHandle) -> bool {
        let api = self.context.api;
        let (Some(change), Some(launch)) = (api.change_kernel, api.launch_graph) else { return false };
        let is_queued = with_params(&self.kernels, put, |params| {
            // SAFETY: all handles exist, the driver copies the parameters, and the caller's promise.
            unsafe {
                change(self.executable, self.node, params) == SUCCESS
                    && launch(self.executable, stream) == SUCCESS
            }
        });
        is_queued.unwrap_or(false)
    }
}

/// Calls a function with the parameters of a put's kernel node. None if the put is too large.
fn with_params<T>(
    kernels: &PutKernels,
    put: &Put,
    function: impl FnOnce(&KernelNodeParams) -> T,
) -> Option<T> {
    let launch = kernels.launch(put.to, put.from, put.bytes)?;
    let (to, from, count) = (put.to, put.from, launch.count);
    let (word, value) = put.word.unwrap_or_default();
    let mut parameters: [*mut c_void; 5] = [
        (&raw const to).cast_mut().cast(),
        (&raw const from).cast_mut().cast(),
        (&raw const count).cast_mut().cast(),
        (&raw const word).cast_mut().cast(),
        (&raw const value).cast_mut().cast(),
    ];
    Some(function(&KernelNodeParams::new(launch.function.raw(), launch.threads, &mut parameters)))
}

impl Drop for PutGraph {
    fn drop(&mut self) {
        let api = self.context.api;
        let Ok(_current) = self.context.current() else { return };
        for (handle, destroy) in [(self.executable, api.destroy_executable), (self.graph, api.destroy_graph)]
        {
            if let Some(destroy) = destroy.filter(|_| handle != 0) {
                // SAFETY: the handle exists and is no longer used; the driver completes what was launched.
                let _ = unsafe { destroy(handle) };
            }
        }
    }
}
