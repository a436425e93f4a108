//! Checks of the CUDA driver and its devices.

use super::{limits, within};
use ringfold_cuda::{CudaError, Survey, nvrtc};
use ringfold_proto::doctor::Finding;
use std::path::Path;

/// All checks. With `deep`, devices are opened.
pub(super) fn examine(deep: bool) -> Vec<Finding> {
    let has_device = Path::new("/dev/nvidia0").exists() || Path::new("/dev/dxg").exists();
    match within(limits::CUDA_MAX, "cuda", move || (Survey::new(deep), compiler())) {
        None => vec![Finding::fail(
            "cuda.driver",
            format!("the CUDA driver does not answer within {} s", limits::CUDA_MAX.as_secs()),
            "look at `nvidia-smi` and `dmesg`: a device may have failed; restart the machine",
        )],
        Some((Err(error), _)) => vec![no_driver(&error, has_device)],
        Some((Ok(survey), compiler)) => judge(&survey, compiler, deep),
    }
}

/// The version of the kernel compiler.
fn compiler() -> Result<String, String> {
    let loaded = nvrtc::Compiler::load(None).map_err(|error| error.to_string())?;
    let (major, minor) = loaded.version();
    Ok(format!("{major}.{minor}"))
}

fn no_driver(error: &CudaError, has_device: bool) -> Finding {
    match (has_device, error) {
        (true, error) => Finding::warn(
            "cuda.driver",
            format!("there is an NVIDIA device, but {error}"),
            "check CUDA_VISIBLE_DEVICES; install the driver; in a container use the NVIDIA runtime (`docker run --gpus all`)",
        ),
        (false, CudaError::NoDriver(_)) => {
            Finding::ok("cuda.driver", "no CUDA driver: only tensors in host memory are used")
        }
        (false, error) => Finding::warn("cuda.driver", error.to_string(), "look at `nvidia-smi` and `dmesg`"),
    }
}

fn judge(survey: &Survey, compiler: Result<String, String>, deep: bool) -> Vec<Finding> {
    let version =
        survey.version.map_or("an unknown version".into(), |(major, minor)| format!("{major}.{minor}"));
    let mut findings = vec![Finding::ok("cuda.driver", format!("the driver supports CUDA {version}"))];
    if survey.devices.is_empty() {
        findings.push(Finding::warn(
            "cuda.devices",
            "the CUDA driver reports no device",
            "check CUDA_VISIBLE_DEVICES, and the devices that the container may use",
        ));
        return findings;
    }
    let list = |devices: Vec<String>| devices.join(", ");
    let names = survey.devices.iter().map(|device| {
        format!("{} ({}, sm_{}{})", device.ordinal, device.name, device.capability.0, device.capability.1)
    });
    findings.push(Finding::ok("cuda.devices", format!("devices: {}", list(names.collect()))));
    let numbers = |test: fn(&&ringfold_cuda::SurveyedDevice) -> bool| {
        survey.devices.iter().filter(test).map(|device| device.ordinal.to_string()).collect::<Vec<_>>()
    };
    let (prohibited, exclusive) = (numbers(|d| d.is_prohibited), numbers(|d| d.is_exclusive && !d.has_mps));
    if !prohibited.is_empty() {
        findings.push(Finding::fail(
            "cuda.compute-mode",
            format!("no process may use the devices {}: their compute mode is prohibited", list(prohibited)),
            "nvidia-smi -c DEFAULT",
        ));
    } else if !exclusive.is_empty() {
        findings.push(Finding::warn(
            "cuda.compute-mode",
            format!("only one process may use each of the devices {}", list(exclusive)),
            "nvidia-smi -c DEFAULT, if several peers share a device; or start MPS",
        ));
    }
    let broken = survey.devices.iter().find_map(|d| d.ipc_error.as_ref().map(|error| (d.ordinal, error)));
    match broken {
        Some((ordinal, error)) => findings.push(Finding::warn(
            "cuda.ipc",
            format!("device {ordinal} cannot share memory with other processes ({error}): peers of this host copy through host memory"),
            "in containers share the IPC namespace (`docker run --ipc=host`); set PYTORCH_CUDA_ALLOC_CONF without expandable_segments",
        )),
        None if deep => {
            findings.push(Finding::ok("cuda.ipc", "all devices can share memory with other processes"));
        }
        None => {}
    }
    if let Some((one, other)) = survey.without_peer_access.first() {
        let count = survey.without_peer_access.len();
        findings.push(Finding::warn(
            "cuda.peer-access",
            format!("device {one} cannot access the memory of device {other} ({count} such pairs): copies go through the host"),
            "use devices that are connected by NVLink or one PCIe switch (`nvidia-smi topo -m`); turn off ACS and the IOMMU",
        ));
    } else if survey.devices.len() > 1 {
        findings.push(Finding::ok("cuda.peer-access", "all devices can access the memory of each other"));
    }
    let mps = survey.devices.iter().any(|device| device.has_mps);
    let text = if mps {
        "devices are used through MPS: kernels of several peers run together"
    } else {
        "MPS is not used"
    };
    findings.push(Finding::ok("cuda.mps", text));
    findings.push(match compiler {
        Ok(version) => Finding::ok("cuda.compiler", format!("the kernel compiler (NVRTC) is {version}")),
        Err(error) => Finding::warn(
            "cuda.compiler",
            format!("no kernel compiler: {error}; collectives on devices go through host memory"),
            "pip install nvidia-cuda-nvrtc-cu12, or install the CUDA toolkit",
        ),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_cuda::SurveyedDevice;
    use ringfold_proto::doctor::Judgement::{Fail, Ok as Good, Warn};
    use ringfold_proto::doctor::worst;

    fn survey(devices: i32) -> Survey {
        let device = |ordinal| SurveyedDevice {
            ordinal,
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            is_exclusive: false,
            is_prohibited: false,
            has_mps: false,
            ipc_error: None,
        };
        let devices = (0..devices).map(device).collect();
        Survey { version: Some((12, 4)), devices, without_peer_access: Vec::new() }
    }

    fn named(survey: &Survey, check: &str) -> Option<Finding> {
        judge(survey, Ok("12.4".into()), true).into_iter().find(|finding| finding.check == check)
    }

    #[test]
    fn a_machine_without_cuda_is_ok_unless_it_has_a_device() {
        let error = CudaError::NoDriver("libcuda.so.1: no such file".into());
        assert_eq!(no_driver(&error, false).judgement, Good);
        let lacking = no_driver(&error, true);
        assert!(lacking.judgement == Warn && lacking.remedy.contains("--gpus"), "{lacking:?}");
    }

    #[test]
    fn faults_of_devices_are_named() {
        let mut two = survey(2);
        assert_eq!(worst(&judge(&two, Ok("12.4".into()), true)), Good);
        assert!(named(&two, "cuda.devices").unwrap().text.contains("1 (NVIDIA H200, sm_90)"));
        two.without_peer_access = vec![(0, 1), (1, 0)];
        assert!(named(&two, "cuda.peer-access").unwrap().text.contains("2 such pairs"));
        two.devices[1].ipc_error = Some("not supported".into());
        assert_eq!(named(&two, "cuda.ipc").unwrap().judgement, Warn);
        two.devices[0].is_exclusive = true;
        assert_eq!(named(&two, "cuda.compute-mode").unwrap().judgement, Warn);
        two.devices[0].has_mps = true;
        assert_eq!(named(&two, "cuda.compute-mode"), None);
        two.devices[0].is_prohibited = true;
        assert_eq!(named(&two, "cuda.compute-mode").unwrap().judgement, Fail);
        assert_eq!(worst(&judge(&survey(0), Err("none".into()), false)), Warn);
        assert_eq!(worst(&judge(&survey(1), Err("none".into()), false)), Warn);
    }
}
