//! NVRTC's functions, and the programs that it compiles.

use super::CompileError;
use crate::api::{Code, DriverHandle, SUCCESS, functions, loader_message};
use core::ffi::{CStr, c_char, c_int, c_void};
use libloading::Library;
use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

functions! {
    pub(super) struct Api;
    required: {
        version = c"nvrtcVersion"(*mut c_int, *mut c_int),
        create = c"nvrtcCreateProgram"(
            *mut DriverHandle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ),
        destroy = c"nvrtcDestroyProgram"(*mut DriverHandle),
        compile = c"nvrtcCompileProgram"(DriverHandle, c_int, *const *const c_char),
        log_bytes = c"nvrtcGetProgramLogSize"(DriverHandle, *mut usize),
        log = c"nvrtcGetProgramLog"(DriverHandle, *mut c_char),
        ptx_bytes = c"nvrtcGetPTXSize"(DriverHandle, *mut usize),
        ptx = c"nvrtcGetPTX"(DriverHandle, *mut c_char),
        cubin_bytes = c"nvrtcGetCUBINSize"(DriverHandle, *mut usize),
        cubin = c"nvrtcGetCUBIN"(DriverHandle, *mut c_char),
        error_text = c"nvrtcGetErrorString"(Code) -> *const c_char,
    }
    optional: {}
}

impl Api {
    /// Loads a library by path, or by name from the loader's path.
    pub(super) fn open(library: &Path) -> Result<Self, String> {
        Self::open_with(library, RTLD_NOW | RTLD_LOCAL)
    }

    /// The library of this name, if this process has loaded it.
    pub(super) fn opened(name: &str) -> Option<Self> {
        let library = Path::new(name);
        Self::open_with(library, RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD).ok()
    }

    fn open_with(name: &Path, flags: c_int) -> Result<Self, String> {
        // SAFETY: NVRTC may be loaded anywhere: its initialisers have no visible effect.
        let library =
            unsafe { unix::Library::open(Some(name), flags) }.map_err(|error| loader_message(&error))?;
        Self::from_library(library.into(), &format!("{} is not NVRTC or", name.display()))
    }

    /// The file that NVRTC was loaded from.
    pub(super) fn path(&self) -> PathBuf {
        file_of(self.error_text as *const c_void).unwrap_or_default()
    }

    pub(super) fn version(&self) -> Result<(i32, i32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both can be written.
        let code = unsafe { (self.version)(&raw mut major, &raw mut minor) };
        if code == SUCCESS { Ok((major, minor)) } else { Err(self.describe(code)) }
    }

    fn describe(&self, code: Code) -> String {
        // SAFETY: the function returns a static text of the library, or null.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("NVRTC error {code}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, code: Code) -> Result<(), CompileError> {
        if code == SUCCESS { Ok(()) } else { Err(CompileError::Failed(self.describe(code))) }
    }
}

/// A source being compiled.
pub(super) struct Program<'a> {
    api: &'a Api,
    handle: DriverHandle,
}

type Sizer = unsafe extern "C" fn(DriverHandle, *mut usize) -> Code;
type Getter = unsafe extern "C" fn(DriverHandle, *mut c_char) -> Code;

impl<'a> Program<'a> {
    pub(super) fn create(
        api: &'a Api,
        source: &CStr,
        name: &CStr,
        texts: &[CString],
        names: &[CString],
    ) -> Result<Self, CompileError> {
        debug_assert_eq!(texts.len(), names.len());
        let (texts, names) = (pointers(texts), pointers(names));
        let mut handle = 0;
        let count = c_int::try_from(names.len()).unwrap_or(0);
        // SAFETY: the handle can be written, and there are `count` texts and names, all of them strings, which are copied.
        let code = unsafe {
            let (source, name) = (source.as_ptr(), name.as_ptr());
            (api.create)(&raw mut handle, source, name, count, texts.as_ptr(), names.as_ptr())
        };
        api.check(code)?;
        Ok(Self { api, handle })
    }

    /// Compiles it, or returns the compiler's log.
    pub(super) fn compile(&self, options: &[CString]) -> Result<(), String> {
        let options = pointers(options);
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: the program exists, and there are `count` options, all of them strings.
        let code = unsafe { (self.api.compile)(self.handle, count, options.as_ptr()) };
        if code == SUCCESS {
            return Ok(());
        }
        let log = self.bytes(self.api.log_bytes, self.api.log).unwrap_or_default();
        let log = log.strip_suffix(&[0]).unwrap_or(&log);
        let result = self.api.describe(code);
        match String::from_utf8_lossy(log).trim() {
            "" => Err(result),
            log => Err(format!("{log}\n({result})")),
        }
    }

    pub(super) fn ptx(&self) -> Result<Vec<u8>, CompileError> {
        self.bytes(self.api.ptx_bytes, self.api.ptx)
    }

    pub(super) fn cubin(&self) -> Result<Vec<u8>, CompileError> {
        self.bytes(self.api.cubin_bytes, self.api.cubin)
    }

    fn bytes(&self, sizer: Sizer, getter: Getter) -> Result<Vec<u8>, CompileError> {
        let mut count = 0;
        // SAFETY: the program exists, and the count can be written.
        self.api.check(unsafe { sizer(self.handle, &raw mut count) })?;
        let mut bytes = vec![0_u8; count];
        // SAFETY: there is room for as many bytes as were reported.
        self.api.check(unsafe { getter(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program exists, and is no longer used.
        let _ = unsafe { (self.api.destroy)(&raw mut self.handle) };
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zeros are a value of this struct: numbers and null pointers.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be passed, and the struct can be written.
    let found = unsafe { libc::dladdr(function, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name belongs to a library that stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
