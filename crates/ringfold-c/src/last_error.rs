//! The words of this thread's last failure.

use core::ffi::c_char;
use std::cell::RefCell;
use std::ffi::CString;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the words until this thread's next failure.
pub(crate) fn remember(text: &str) {
    // Names of peers are the users' and may hold anything; C ends at the first zero.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that is being torn down has nobody left to ask.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Why the last call of this thread that failed did so; empty if none did.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetLastError() -> *const c_char {
    // The text's bytes stay where they are until the next failure puts another text there.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
pub(crate) fn text() -> String {
    LAST.with(|last| last.borrow().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_remembered_for_its_thread_alone() {
        remember("a\0b");
        assert_eq!(text(), "a b");
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
    }
}
