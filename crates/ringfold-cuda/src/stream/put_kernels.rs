//! The kernels of small puts, loaded once per device.

use crate::error::CudaError;
use crate::function::Function;
use crate::gpu::Gpu;
use crate::limits::{PUT_ELEMENTS_MAX, PUT_ELEMENTS_PER_THREAD, PUT_THREADS_MIN};
use crate::module::Module;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const HEADER: &str = ".version 6.0\n.target sm_70\n.address_size 64\n";
const TEMPLATE: &str = include_str!("../../kernels/put.ptx");

/// The width of an element in bytes, and the instructions that load and store one.
const WIDTHS: [(usize, &str, &str); 3] = [
    (16, "ld.global.v2.u64 {%lowN, %highN}, [%fromN];", "st.global.v2.u64 [%toN], {%lowN, %highN};"),
    (4, "ld.global.u32 %lowN, [%fromN];", "st.global.u32 [%toN], %lowN;"),
    (1, "ld.global.u8 %lowN, [%fromN];", "st.global.u8 [%toN], %lowN;"),
];

/// Set in the environment by compute-sanitizer, which runs one kernel of a process at a time.
const SANITIZER: &str = "NV_SANITIZER_INJECTION_TRANSPORT_TYPE";

/// A kernel for each width.
pub(super) struct PutKernels([Function; WIDTHS.len()]);

/// The launch of a put.
pub(super) struct PutLaunch<'a> {
    pub(super) function: &'a Function,
    pub(super) threads: u32,
    pub(super) count: u32,
}

/// The loaded kernels by device, for the life of the process. None if a device cannot load them.
static LOADED: LazyLock<Mutex<HashMap<i32, Option<Arc<PutKernels>>>>> = LazyLock::new(Mutex::default);

impl PutKernels {
    /// The kernels of a device. None if they cannot be used.
    ///
    /// The first call may wait for all running kernels.
    pub(super) fn of(ordinal: i32) -> Option<Arc<Self>> {
        LOADED.lock().entry(ordinal).or_insert_with(|| Self::load(ordinal).ok().map(Arc::new)).clone()
    }

    fn load(ordinal: i32) -> Result<Self, CudaError> {
        if std::env::var_os(SANITIZER).is_some() {
            // A put would wait for the kernel that waits for it.
            return Err(CudaError::Unsupported("compute-sanitizer runs one kernel at a time".into()));
        }
        let module = Module::load(&Gpu::open(ordinal)?, source().as_bytes())?;
        let function = |width| module.function(&format!("ringfold_put_{width}"));
        Ok(Self([function(WIDTHS[0].0)?, function(WIDTHS[1].0)?, function(WIDTHS[2].0)?]))
    }

    /// The launch of a copy. None if it is too large for one block.
    pub(super) fn launch(&self, to: u64, from: u64, bytes: usize) -> Option<PutLaunch<'_>> {
        let (index, count) = elements(to, from, bytes)?;
        let threads = count.div_ceil(PUT_ELEMENTS_PER_THREAD).next_multiple_of(32).max(PUT_THREADS_MIN);
        Some(PutLaunch { function: &self.0[index], threads, count })
    }
}

/// The index of the largest width that both addresses and the size are multiples of, and the number of elements.
fn elements(to: u64, from: u64, bytes: usize) -> Option<(usize, u32)> {
    let index = WIDTHS.iter().position(|(width, ..)| {
        let width = *width as u64;
        to.is_multiple_of(width) && from.is_multiple_of(width) && (bytes as u64).is_multiple_of(width)
    })?;
    let count = bytes / WIDTHS[index].0;
    (count <= PUT_ELEMENTS_MAX).then_some((index, count as u32))
}

fn source() -> String {
    let mut source = HEADER.to_owned();
    for (width, load, store) in WIDTHS {
        let mut kernel =
            TEMPLATE.replace("WIDTH,", &format!("{width},")).replace("_WIDTH", &format!("_{width}"));
        for number in ["0", "1", "2", "3"] {
            kernel = kernel
                .replace(&format!("LOAD{number}"), &load.replace('N', number))
                .replace(&format!("STORE{number}"), &store.replace('N', number));
        }
        source += &kernel;
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_a_kernel_without_placeholders() {
        let code: String =
            source().lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n");
        for (width, ..) in WIDTHS {
            assert!(code.contains(&format!(".visible .entry ringfold_put_{width}(")), "{code}");
            assert!(code.contains(&format!("%at3, {width}, %to;")), "{code}");
        }
        for placeholder in ["WIDTH", "LOAD", "STORE", "N,", "N}", "N]"] {
            assert!(!code.contains(placeholder), "{placeholder} in {code}");
        }
    }

    #[test]
    fn the_width_divides_addresses_and_size_and_large_puts_are_left_to_the_driver() {
        assert_eq!(elements(0x100, 0x200, 64 << 10), Some((0, 4096)));
        assert_eq!(elements(0x100, 0x200, (64 << 10) + 16), None);
        assert_eq!(elements(0x100, 0x208, 8), Some((1, 2)));
        assert_eq!(elements(0x104, 0x200, 16 << 10), Some((1, 4096)));
        assert_eq!(elements(0x104, 0x200, (16 << 10) + 4), None);
        assert_eq!(elements(0x101, 0x200, 4096), Some((2, 4096)));
        assert_eq!(elements(0x100, 0x200, 1), Some((2, 1)));
        assert_eq!(elements(0x100, 0x200, 4097), None);
    }
}
