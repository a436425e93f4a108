//! What the CUDA driver and the devices of this machine can do, for diagnosis.

use crate::api::{self, Api};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, check};
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::ipc::IpcRecord;
use core::ffi::{c_char, c_int};

/// The driver and its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// The newest CUDA version that the driver supports, major and minor number; none if it does not say.
    pub version: Option<(i32, i32)>,
    /// The devices, by number.
    pub devices: Vec<SurveyedDevice>,
    /// Pairs of devices of which the first cannot access the memory of the second.
    pub without_peer_access: Vec<(i32, i32)>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SurveyedDevice {
    /// Its number.
    pub ordinal: i32,
    /// Its name, or an empty one.
    pub name: String,
    /// The compute capability.
    pub capability: (i32, i32),
    /// Whether only one process at a time may use it.
    pub is_exclusive: bool,
    /// Whether no process may use it.
    pub is_prohibited: bool,
    /// Whether it is used through MPS.
    pub has_mps: bool,
    /// Why memory cannot be shared with other processes; none if it can, or was not tried.
    pub ipc_error: Option<String>,
}

impl Survey {
    /// Asks the driver. With `deep`, devices are opened, and memory is exported: that takes a second and hundreds of megabytes of
    /// each device.
    pub fn new(deep: bool) -> Result<Self, CudaError> {
        let driver = Driver::loaded()?;
        let count = i32::try_from(driver.device_count()).unwrap_or(0);
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let attribute = |number| context::attribute(&driver.api, ordinal, number);
            let mode = attribute(api::DEVICE_COMPUTE_MODE)?;
            let ipc_error = (deep && mode != api::COMPUTE_MODE_PROHIBITED).then(|| export(ordinal).err());
            devices.push(SurveyedDevice {
                ordinal,
                name: name(&driver.api, ordinal),
                capability: (
                    attribute(api::DEVICE_CAPABILITY_MAJOR)?,
                    attribute(api::DEVICE_CAPABILITY_MINOR)?,
                ),
                is_exclusive: mode == api::COMPUTE_MODE_EXCLUSIVE,
                is_prohibited: mode == api::COMPUTE_MODE_PROHIBITED,
                // Older drivers do not know the attribute.
                has_mps: attribute(api::DEVICE_MPS_ENABLED).is_ok_and(|enabled| enabled != 0),
                ipc_error: ipc_error.flatten().map(|error| error.to_string()),
            });
        }
        let pairs = (0..count).flat_map(|one| (0..count).map(move |other| (one, other)));
        let pairs = pairs.filter(|(one, other)| one != other);
        let mut without_peer_access = Vec::new();
        for (one, other) in pairs {
            if !can_access(&driver.api, one, other)? {
                without_peer_access.push((one, other));
            }
        }
        Ok(Self { version: version(&driver.api), devices, without_peer_access })
    }
}

/// Exports memory for other processes.
fn export(ordinal: i32) -> Result<(), CudaError> {
    let memory = GpuMemory::zeroed(&Gpu::open(ordinal)?, 4096)?;
    IpcRecord::export(memory.address(), memory.len()).map(drop)
}

fn version(api: &Api) -> Option<(i32, i32)> {
    let mut number: c_int = 0;
    // SAFETY: the number can be written.
    let code = unsafe { api.driver_version?(&raw mut number) };
    (code == api::SUCCESS).then_some((number / 1000, number % 1000 / 10))
}

fn name(api: &Api, ordinal: i32) -> String {
    const BYTES: usize = 128;
    let mut bytes = [0_u8; BYTES];
    let Some(function) = api.device_name else { return String::new() };
    // SAFETY: the place has room for so many bytes; the driver ends the text with zero.
    let code = unsafe { function(bytes.as_mut_ptr().cast::<c_char>(), BYTES as c_int, ordinal) };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    if code == api::SUCCESS { String::from_utf8_lossy(text).into_owned() } else { String::new() }
}

fn can_access(api: &Api, one: i32, other: i32) -> Result<bool, CudaError> {
    let Some(function) = api.can_access_peer else { return Ok(true) };
    let mut can: c_int = 0;
    // SAFETY: the number can be written.
    let code = unsafe { function(&raw mut can, one, other) };
    check(api, "asking whether CUDA devices can access each other", code)?;
    Ok(can != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_lists_all_devices_or_says_that_there_is_no_driver() {
        match Survey::new(false) {
            Ok(survey) => {
                assert_eq!(survey.devices.len(), Gpu::count().unwrap());
                assert!(survey.devices.iter().all(|device| device.ipc_error.is_none()));
            }
            Err(error) => assert!(error.to_string().starts_with("no CUDA driver: "), "{error}"),
        }
    }
}
