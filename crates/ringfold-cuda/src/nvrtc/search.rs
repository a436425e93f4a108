//! The search for NVRTC and CUDA's headers.

use super::api::Api;
use parking_lot::Mutex;
use ringfold_settings::{Settings, table};
use std::path::{Path, PathBuf};

/// The library's names, the newest first.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

const TOOLKIT: &str = "/usr/local/cuda";

/// A header that identifies CUDA's include directory.
const MARKER_HEADER: &str = "cuda_fp16.h";

static ADDED_DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds directories to search for the compiler after all others.
pub fn add_search_dirs(dirs: impl IntoIterator<Item = PathBuf>) {
    let mut added = ADDED_DIRS.lock();
    for dir in dirs {
        if !added.contains(&dir) {
            added.push(dir);
        }
    }
}

/// Loads the library at a path, or in a directory, or the first one that is found.
pub(super) fn find(path: Option<&Path>) -> Result<Api, String> {
    let settings = Settings::without_builder().map_err(|error| error.to_string())?;
    if let Some(path) = path.or_else(|| settings.path(&table::NVRTC)) {
        let file = NAMES.iter().map(|name| path.join(name)).find(|file| file.is_file());
        return Api::open(file.as_deref().unwrap_or(path));
    }
    if let Some(api) = NAMES.iter().find_map(|name| Api::opened(name)) {
        return Ok(api);
    }
    let mut failures = Vec::new();
    let named = NAMES.iter().map(PathBuf::from);
    let files = dirs().into_iter().flat_map(|dir| NAMES.map(|name| dir.join(name)));
    for file in named.chain(files.filter(|file| file.is_file())) {
        match Api::open(&file) {
            Ok(api) => return Ok(api),
            Err(why) => failures.push(why),
        }
    }
    Err(format!(
        "{}. Install the CUDA toolkit (and set CUDA_HOME) or nvidia-cuda-nvrtc from pip, or set {} to the \
         library",
        failures.join("; "),
        table::NVRTC.variable
    ))
}

fn dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for root in toolkits() {
        dirs.extend([root.join("lib64"), root.join("targets/x86_64-linux/lib"), root.join("lib")]);
    }
    dirs.extend(ADDED_DIRS.lock().iter().cloned());
    dirs
}

fn toolkits() -> Vec<PathBuf> {
    let configured = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    configured.filter(|path| !path.is_empty()).map(PathBuf::from).chain([PathBuf::from(TOOLKIT)]).collect()
}

/// CUDA's header directories: those next to the library, or those of a toolkit.
pub(super) fn include_dirs(library: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    // The library may be a link into another directory.
    for library in [Some(library.to_owned()), library.canonicalize().ok()].into_iter().flatten() {
        let mut above = library.ancestors().skip(1);
        if let (Some(lib), Some(root)) = (above.next(), above.next()) {
            places.push(root.join("include"));
            // The Python packages of CUDA 12 have a directory for each library.
            places.extend(root.parent().map(|packages| packages.join("cuda_runtime/include")));
            places.push(lib.join("include"));
        }
    }
    places.extend(toolkits().into_iter().map(|root| root.join("include")));
    // The location in Linux distributions. Our host headers take precedence over the system's, which do not compile.
    places.push(PathBuf::from("/usr/include"));
    let Some(found) = places.into_iter().find(|place| place.join(MARKER_HEADER).is_file()) else {
        return Vec::new();
    };
    // Since CUDA 13 CUDA's C++ library has a directory of its own.
    let cccl = Some(found.join("cccl")).filter(|dir| dir.is_dir());
    [found].into_iter().chain(cccl).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_in_the_error() {
        let error = find(Some(Path::new("/nowhere/libnvrtc.so.13"))).err().unwrap();
        assert!(error.contains("/nowhere/libnvrtc.so.13"), "{error}");
    }

    #[test]
    fn another_library_is_rejected() {
        let error = find(Some(Path::new("libc.so.6"))).err().unwrap();
        assert!(error.contains("nvrtcVersion"), "{error}");
    }
}
