//! All-reduces between peers of one host, in the memory of their CUDA devices.
//!
//! Each peer copies its input into an area that the others have opened (CUDA IPC), computes its part from all inputs into
//! the second half of its area, copies the parts of the others, and votes. The result is copied to the user's
//! memory when the operation is committed. No kernel waits for another peer: the peers tell each other over
//! their links when a stage is complete. If a peer dies the operation is aborted as any other.

use super::exchange_work::{self, ExchangeWork};
use super::{Staging, weights};
use crate::Error;
use crate::all_reduce::ReduceInfo;
use crate::device_group::element;
use crate::device_plan::DevicePlan;
use crate::driver::{DeviceAnswer, Driver};
use crate::engine::Waiting;
use ringfold_cuda::{CudaError, Gpu};
use ringfold_proto::id::CallId;
use ringfold_proto::link_message::DeviceStage;

/// Shorter tensors are staged through the host: the exchange of offers would take longer.
const BYTES_MIN: usize = 256 << 10;

impl Staging {
    /// Reduces in device memory; none if the operation has to run in host memory.
    pub(super) fn reduce_on_device(&self, waiting: Waiting) -> Result<Option<ReduceInfo>, Error> {
        let Some(gpu) = self.exchange_gpu() else { return Ok(None) };
        let Some(plan) = self.ask(waiting, Driver::device_start)? else { return Ok(None) };
        match self.exchange(waiting, &gpu, &plan) {
            Ok(info) => Ok(Some(info)),
            Err(NotExchanged::OnHost) => Ok(None),
            Err(NotExchanged::Failed(error)) => Err(error),
            Err(NotExchanged::Impossible(why)) => {
                tracing::info!(%why, "peers of this host cannot share CUDA memory: staging through the host");
                Ok(None)
            }
            Err(NotExchanged::Broken(error)) => {
                // The others rely on this peer: the operation fails.
                let _ = self.engine.with_waiter(|driver| driver.supply(self.call, None));
                let _ = self.engine.wait_as(waiting, self.call);
                Err(error.into())
            }
        }
    }

    /// The device of the tensors, if this kind of all-reduce is possible in device memory.
    fn exchange_gpu(&self) -> Option<Gpu> {
        let descriptor = &self.descriptor;
        let has_kernel = element::operation(descriptor.op, descriptor.dtype).is_ok();
        let (source, target) = &self.pair;
        let is_on_one_device = source.ordinal() == target.ordinal();
        if !has_kernel || !is_on_one_device || self.feedback || source.len() < BYTES_MIN {
            return None;
        }
        Gpu::open(source.ordinal()?).ok()
    }

    fn exchange(&self, waiting: Waiting, gpu: &Gpu, plan: &DevicePlan) -> Result<ReduceInfo, NotExchanged> {
        let (source, target) = &self.pair;
        let impossible = NotExchanged::Impossible;
        let pool = self.engine.exchange_pool();
        let capacity = exchange_work::capacity(&self.descriptor, plan, source.len());
        // Declared first, so that they are closed after the work of the lease has ended.
        let peers;
        let lease = pool.take(gpu, capacity).map_err(impossible)?;
        let area = lease.area();
        let work = ExchangeWork::start(self, plan, area).map_err(impossible)?;

        let memory = weights::append(&self.descriptor, area.offer());
        self.tell(DeviceStage::Offered { memory })?;
        let mut offers = self.stage(waiting, Driver::device_offers)?;
        let sum_of_weights = weights::take_sum(&self.descriptor, plan, &mut offers);
        if sum_of_weights.is_none() && self.descriptor.weight.is_some() {
            return Err(impossible(CudaError::Argument("a peer has offered no weight".into())));
        }
        peers = pool.open(plan, offers, gpu, capacity).map_err(impossible)?;
        area.wait().map_err(impossible)?;

        self.tell(DeviceStage::Ready)?;
        self.stage(waiting, Driver::device_ready)?;
        let broken = NotExchanged::Broken;
        let mut moved_bytes = work.fold(plan, &peers, source).map_err(broken)?;
        area.wait().map_err(broken)?;
        if work.has_gather(plan) {
            self.tell(DeviceStage::Folded)?;
            self.stage(waiting, Driver::device_folded)?;
            moved_bytes += work.gather(plan, &peers, source).map_err(broken)?;
            area.wait().map_err(broken)?;
        }

        let finish = |driver: &mut Driver| driver.finish_on_device(self.call, moved_bytes);
        self.engine.with_waiter(finish).map_err(NotExchanged::Failed)?;
        let ended = self.engine.wait_as(waiting, self.call);
        ended.result.map_err(NotExchanged::Failed)?;
        // Committed: a failure from here on is this peer's alone.
        let stored = work.store(area, target, sum_of_weights, &self.queued).and_then(|()| area.wait());
        stored.map_err(|error| NotExchanged::Failed(error.into()))?;
        Ok(ended.info)
    }

    fn tell(&self, stage: DeviceStage) -> Result<(), NotExchanged> {
        let tell = |driver: &mut Driver| driver.tell_stage(self.call, &stage);
        self.engine.with_waiter(tell).map_err(NotExchanged::Failed)
    }

    fn stage<T>(
        &self,
        waiting: Waiting,
        question: impl Fn(&Driver, CallId) -> Option<DeviceAnswer<T>>,
    ) -> Result<T, NotExchanged> {
        let answer =
            self.ask(waiting, |driver, call| question(driver, call)).map_err(NotExchanged::Failed)?;
        answer.ok_or(NotExchanged::OnHost)
    }

    /// Waits for the answer of the driver; none if the operation has to run in host memory.
    fn ask<T>(
        &self,
        waiting: Waiting,
        question: impl Fn(&mut Driver, CallId) -> Option<DeviceAnswer<T>>,
    ) -> Result<Option<T>, Error> {
        match self.engine.ask(waiting, |driver| question(driver, self.call))? {
            DeviceAnswer::All(value) => Ok(Some(value)),
            DeviceAnswer::OnHost => Ok(None),
            DeviceAnswer::Ended => Err(match self.engine.wait_as(waiting, self.call).result {
                Err(error) => error,
                Ok(_) => Error::Internal("an all-reduce in device memory ended before its result".into()),
            }),
        }
    }
}

/// Why an operation did not run in device memory.
enum NotExchanged {
    /// A member runs the operation in host memory.
    OnHost,
    /// This peer cannot take part, and has not promised to.
    Impossible(CudaError),
    /// The device failed after this peer has promised to take part.
    Broken(CudaError),
    /// The call has failed.
    Failed(Error),
}
