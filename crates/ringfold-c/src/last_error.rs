//! The text of this thread's last error.

use core::ffi::c_char;
use std::cell::RefCell;
use std::ffi::CString;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores the text until this thread's next error.
pub(crate) fn remember(text: &str) {
    // Names of peers may contain zeros, which end a C string.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // An error means that the thread is ending.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The error of the last failed call of this thread; empty if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetLastError() -> *const c_char {
    // The bytes do not move until the next error replaces them.
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
    fn errors_are_stored_per_thread() {
        remember("a\0b");
        assert_eq!(text(), "a b");
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
    }
}
