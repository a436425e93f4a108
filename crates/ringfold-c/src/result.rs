//! Results: how a failure is told to C, and how a call is kept from panicking into it.

use crate::last_error;
use core::ffi::{CStr, c_char, c_int};
use ringfold_bindings::result::CallError;
pub use ringfold_bindings::result::ResultCode;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call: its failure is remembered for `pcclGetLastError`, and a panic is a failure.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), CallError>) -> ResultCode {
    // A panic can leave nothing half done that is used afterwards: locks are held over single steps, and the
    // crate below takes a communicator whose thread panicked out of use by itself.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(CallError::new(ResultCode::InternalError, format!("internal error: {}", said(panic.as_ref()))))
    });
    match result {
        Ok(()) => ResultCode::Success,
        Err(failure) => {
            last_error::remember(&failure.text);
            failure.code
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without words")
}

/// What a result means, as a sentence that is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetErrorString(result: c_int) -> *const c_char {
    sentence(result).as_ptr()
}

fn sentence(result: c_int) -> &'static CStr {
    match result {
        0 => c"success",
        1 => c"pcclInit was not called",
        2 => c"internal error: the operating system refused something, or a bug",
        3 => c"an argument can't be used",
        4 => c"the call can't be made now",
        5 => c"there is no other peer in the group",
        6 => c"the master can't be reached, or this peer is not part of the run",
        7 => c"a peer can't be reached",
        8 => c"the operation was aborted for all of the group; retry it",
        9 => c"nobody has the shared state that all wait for",
        10 => c"asynchronous operations must be awaited first",
        11 => c"the topology could not be updated; retry",
        12 => c"the topology could not be optimised; retry",
        13 => c"the shared state was rejected, or the vote on it failed",
        14 => c"another peer failed",
        _ => c"no result of this library",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_words() {
        assert_eq!(guarded(|| panic!("seven {}", 7)), ResultCode::InternalError);
        assert_eq!(last_error::text(), "internal error: seven 7");
    }

    #[test]
    fn every_result_has_a_sentence_and_anything_else_too() {
        for number in -1..=15 {
            assert!(!sentence(number).is_empty());
        }
        assert_eq!(sentence(15), sentence(c_int::MIN));
    }
}
