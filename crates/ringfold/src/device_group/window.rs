//! Windows of device memory: puts, gets and signals on streams.

use super::agreement::agree;
use super::launch_queue::{CallEnd, LaunchQueue};
use super::{CLOSING_MAX, DeviceGroup, Unsupported};
use crate::Error;
use crate::error::invalid;
use core::time::Duration;
use parking_lot::Mutex;
use ringfold_cuda::device_arena::{DeviceWindow, FoldKernels, KernelKind, Specialisation, WindowOffer};
use ringfold_cuda::{CudaError, DeviceMemory, Stream};
use std::sync::Arc;
use std::time::Instant;

/// The most bytes of a description.
const ABOUT_MAX: usize = 512;

/// Memory of each rank that the others read and write without its help.
///
/// Puts and signals to a rank keep their order, on any stream: a signal arrives after all earlier puts. A wait that times out
/// fails the group, as for all operations on devices.
pub struct DeviceGroupWindow {
    group: Arc<DeviceGroup>,
    /// `None` once it is closed.
    window: Mutex<Option<DeviceWindow>>,
    kernels: Arc<FoldKernels>,
    about: Vec<Vec<u8>>,
    /// Two for each rank: what is sent to it, and the waits for its signals.
    queues: Mutex<Vec<LaunchQueue>>,
}

impl DeviceGroup {
    /// Opens a window: a collective call. Each rank brings memory, or none, and a short description.
    ///
    /// If the memory of one rank cannot be shared, all ranks return the same [`Unsupported`].
    pub fn window(
        self: &Arc<Self>,
        memory: Option<DeviceMemory>,
        about: &[u8],
    ) -> Result<Result<DeviceGroupWindow, Unsupported>, Error> {
        self.check()?;
        if !self.is_on_one_host() {
            return Ok(Err(Unsupported("the ranks are on several hosts".into())));
        }
        let arena = self.arena()?;
        let mine = if about.len() > ABOUT_MAX {
            Err(CudaError::Argument(format!("a description of {} bytes: at most {ABOUT_MAX}", about.len())))
        } else {
            WindowOffer::new(arena, memory)
        };
        let encoded = mine.as_ref().map(|offer| [&offer.encode(), about].concat());
        let offers = match agree(&self.group, encoded.map_err(CudaError::to_string))? {
            Ok(offers) => offers,
            Err(why) => return Ok(Err(Unsupported(why))),
        };
        let opened = DeviceWindow::open(arena, mine?, &offers);
        let kernels = opened.and_then(|window| Ok((window, self.window_kernels().map_err(system)?)));
        let joined = kernels.as_ref().map(|_| Vec::new()).map_err(CudaError::to_string);
        if let Err(why) = agree(&self.group, joined)? {
            return Ok(Err(Unsupported(why)));
        }
        let (window, kernels) = kernels?;
        let about =
            offers.iter().map(|offer| offer[WindowOffer::BYTES.min(offer.len())..].to_vec()).collect();
        let queues = (0..2 * self.world()).map(|_| LaunchQueue::default()).collect();
        let window = Mutex::new(Some(window));
        Ok(Ok(DeviceGroupWindow { group: self.clone(), window, kernels, about, queues: Mutex::new(queues) }))
    }

    fn window_kernels(&self) -> Result<Arc<FoldKernels>, Error> {
        let (element, element_bytes, op, kind) = ("U8", 1, "Sum", KernelKind::Window);
        let wanted = Specialisation { element, element_bytes, op, world: self.world(), kind };
        self.kernels(&mut self.queue.lock(), &wanted)
    }
}

impl DeviceGroupWindow {
    /// Queues a copy of `from` into a rank's memory.
    pub fn put(
        &self,
        from: &DeviceMemory,
        to: usize,
        offset: u64,
        stream: &Stream,
    ) -> Result<CallEnd, Error> {
        self.queue(2 * to, Some(from), stream, |window| window.put(from, to, offset, stream))
    }

    /// Queues a copy of a part of a rank's memory.
    pub fn get(
        &self,
        to: &DeviceMemory,
        from: usize,
        offset: u64,
        stream: &Stream,
    ) -> Result<CallEnd, Error> {
        self.queue(2 * from, Some(to), stream, |window| window.get(to, from, offset, stream))
    }

    /// Queues a signal to a rank.
    pub fn signal(&self, to: usize, stream: &Stream) -> Result<CallEnd, Error> {
        self.queue(2 * to, None, stream, |window| window.signal(&self.kernels, to, stream))
    }

    /// Queues a wait for the next signal of a rank.
    pub fn wait_signal(
        &self,
        from: usize,
        timeout: Option<Duration>,
        stream: &Stream,
    ) -> Result<CallEnd, Error> {
        let timeout = timeout.unwrap_or_default();
        self.queue(2 * from + 1, None, stream, |window| {
            window.wait_signal(&self.kernels, from, timeout, stream)
        })
    }

    /// The size of a rank's memory in bytes.
    pub fn bytes(&self, rank: usize) -> Result<u64, Error> {
        self.with(|window| window.bytes(rank))
    }

    /// The address of a rank's memory in this process.
    pub fn address(&self, rank: usize) -> Result<u64, Error> {
        self.with(|window| window.address(rank))
    }

    /// The window for kernels that include `torchcomms/window_device.hpp`: its bytes, and the address of a copy on the device.
    ///
    /// It is valid until the window is closed.
    pub fn handle(&self) -> Result<(Vec<u8>, u64), Error> {
        self.group.check()?;
        self.with(|window| Ok(window.handle()))
    }

    /// A rank's description.
    pub fn about(&self, rank: usize) -> Result<&[u8], Error> {
        let about = self.about.get(rank);
        Ok(about.ok_or_else(|| {
            invalid!("rank {rank} is out of range: ranks are 0 to {}", self.about.len() - 1)
        })?)
    }

    /// Closes the window: a collective call. When it returns, all puts have arrived.
    ///
    /// It waits for what is queued on this stream, too: kernels of the caller that use the window.
    pub fn close(&self, stream: &Stream) -> Result<(), Error> {
        let ended = self.queue(0, None, stream, |_| Ok(()));
        let ended = ended.and_then(|_| self.synchronize(Instant::now() + self.group.group.timeout()));
        let joined = agree(&self.group.group, ended.as_ref().map(|()| Vec::new()).map_err(Error::to_string));
        let is_done = matches!(joined, Ok(Ok(_)));
        if let Some(window) = self.window.lock().take() {
            window.close(is_done);
        }
        ended?;
        joined?.map(|_| ()).map_err(Error::System)
    }

    fn synchronize(&self, deadline: Instant) -> Result<(), Error> {
        for queue in &mut *self.queues.lock() {
            queue.synchronize(deadline)?;
        }
        self.group.check()
    }

    fn with<T>(&self, get: impl FnOnce(&DeviceWindow) -> Result<T, CudaError>) -> Result<T, Error> {
        let window = self.window.lock();
        let window = window.as_ref().ok_or_else(|| invalid!("the window is closed"))?;
        Ok(get(window)?)
    }

    fn queue(
        &self,
        queue: usize,
        memory: Option<&DeviceMemory>,
        stream: &Stream,
        launch: impl FnOnce(&DeviceWindow) -> Result<(), CudaError>,
    ) -> Result<CallEnd, Error> {
        self.group.check()?;
        let gpu = self.group.gpu()?;
        let _current = gpu.make_current()?;
        let capture = stream.capture()?;
        let mut queues = self.queues.lock();
        let world = self.group.world();
        let Some(queue) = queues.get_mut(queue) else {
            return Err(invalid!("rank {} is out of range: ranks are 0 to {}", queue / 2, world - 1));
        };
        queue.join(stream, capture)?;
        self.with(launch)?;
        queue.end(&gpu, stream, capture, memory.into_iter().cloned().collect())
    }
}

impl Drop for DeviceGroupWindow {
    fn drop(&mut self) {
        let is_done = self.synchronize(Instant::now() + CLOSING_MAX).is_ok();
        if let Some(window) = self.window.lock().take() {
            // Others may still put into it.
            window.close(is_done && self.group.world() == 1);
        }
    }
}

impl core::fmt::Debug for DeviceGroupWindow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceGroupWindow").field("group", &self.group).finish()
    }
}

fn system(error: Error) -> CudaError {
    CudaError::Unsupported(error.to_string())
}
