//! Converts errors to result codes, and panics to errors.

use crate::last_error;
use core::ffi::{CStr, c_char, c_int};
use ringfold_bindings::result::CallError;
pub use ringfold_bindings::result::ResultCode;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call. Its error is stored for `pcclGetLastError`; a panic is an error.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), CallError>) -> ResultCode {
    // Unwind safe: locks are held over single steps, and the crate below disables a communicator whose thread
    // panicked.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(CallError::new(
            ResultCode::InternalError,
            format!("internal error: {}", panic_text(panic.as_ref())),
        ))
    });
    match result {
        Ok(()) => ResultCode::Success,
        Err(failure) => {
            last_error::remember(&failure.text);
            failure.code
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}

/// The description of a result; static.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetErrorString(result: c_int) -> *const c_char {
    description(result).as_ptr()
}

fn description(result: c_int) -> &'static CStr {
    match result {
        0 => c"success",
        1 => c"pcclInit was not called",
        2 => c"internal error: an error of the operating system, or a bug",
        3 => c"invalid argument",
        4 => c"the call is not possible now",
        5 => c"there is no other peer in the group",
        6 => c"the master is unreachable, or this peer is not part of the run",
        7 => c"a peer is unreachable",
        8 => c"the operation was aborted for the whole group; retry it",
        9 => c"no peer has the shared state",
        10 => c"asynchronous operations must be awaited first",
        11 => c"the topology update failed; retry",
        12 => c"the topology optimisation failed; retry",
        13 => c"the shared state was rejected, or the vote on it failed",
        14 => c"another peer failed",
        _ => c"unknown result",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_message() {
        assert_eq!(guarded(|| panic!("seven {}", 7)), ResultCode::InternalError);
        assert_eq!(last_error::text(), "internal error: seven 7");
    }

    #[test]
    fn every_number_has_a_description() {
        for number in -1..=15 {
            assert!(!description(number).is_empty());
        }
        assert_eq!(description(15), description(c_int::MIN));
    }
}
