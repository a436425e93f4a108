//! Compiled kernels, cached on disk.

use crate::error::CudaError;
use crate::nvrtc::{CompileRequest, Compiler};
use std::path::{Path, PathBuf};

/// The code of a kernel, from this file of the cache or compiled.
pub(crate) fn load(
    request: &CompileRequest<'_>,
    file_name: &str,
    compiler: &Compiler,
    cache: Option<&Path>,
) -> Result<Vec<u8>, CudaError> {
    let file = cache.map(|folder| folder.join(file_name));
    if let Some(image) = file.as_ref().and_then(|file| std::fs::read(file).ok())
        && image.starts_with(b"\x7fELF")
    {
        return Ok(image);
    }
    let image = compiler.compile(request).map_err(|error| CudaError::Unsupported(error.to_string()))?;
    if let Some(file) = file {
        // Failing to write the cache is not an error.
        let _ = write_atomically(&file, &image);
    }
    Ok(image)
}

/// The default folder of compiled kernels, the same as that of the Python packages.
pub fn default_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("MSCCLPP_CACHE_DIR").or_else(|| {
        let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(base.join("ringfold").join("kernels"))
    })
}

/// Writes a file such that others see it whole or not at all.
fn write_atomically(file: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(name);
    std::fs::write(&fresh, image)?;
    std::fs::rename(&fresh, file)
}
