//! Where the compiler is looked for, and the headers that belong to it.

use super::api::Api;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};

/// The library's names, the newest first.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

/// Where a toolkit is if nothing says otherwise.
const TOOLKIT: &str = "/usr/local/cuda";

/// The variable that names the library, or the directory that it is in.
const VARIABLE: &str = "RINGFOLD_NVRTC";

/// A header that only CUDA's own directory has.
const MARK: &str = "cuda_fp16.h";

static HINTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The compiler may be in one of these directories. They are looked at last.
pub fn hint(dirs: impl IntoIterator<Item = PathBuf>) {
    let mut hints = HINTS.lock();
    for dir in dirs {
        if !hints.contains(&dir) {
            hints.push(dir);
        }
    }
}

/// The library at a path (or in a directory), or the one that is found.
pub(super) fn find(path: Option<&Path>) -> Result<Api, String> {
    let said = std::env::var_os(VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from);
    if let Some(path) = path.or(said.as_deref()) {
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
        "{}. It comes with CUDA's toolkit (set CUDA_HOME), and with pip's nvidia-cuda-nvrtc; {VARIABLE} may \
         name it",
        failures.join("; ")
    ))
}

fn dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for root in toolkits() {
        dirs.extend([root.join("lib64"), root.join("targets/x86_64-linux/lib"), root.join("lib")]);
    }
    dirs.extend(HINTS.lock().iter().cloned());
    dirs
}

/// Where toolkits are said to be.
fn toolkits() -> Vec<PathBuf> {
    let said = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    said.filter(|path| !path.is_empty()).map(PathBuf::from).chain([PathBuf::from(TOOLKIT)]).collect()
}

/// CUDA's headers that belong to a library: those beside it, or those of a toolkit.
pub(super) fn include_dirs(library: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    // A library's directory may be a link; what it links to has other neighbours.
    for library in [Some(library.to_owned()), library.canonicalize().ok()].into_iter().flatten() {
        let mut above = library.ancestors().skip(1);
        if let (Some(lib), Some(root)) = (above.next(), above.next()) {
            places.push(root.join("include"));
            // Packages of CUDA 12 have a directory for each library.
            places.extend(root.parent().map(|packages| packages.join("cuda_runtime/include")));
            places.push(lib.join("include"));
        }
    }
    places.extend(toolkits().into_iter().map(|root| root.join("include")));
    // Where distributions put them. Ours come before those of the host, which are not for devices.
    places.push(PathBuf::from("/usr/include"));
    let Some(found) = places.into_iter().find(|place| place.join(MARK).is_file()) else {
        return Vec::new();
    };
    // Since CUDA 13 the C++ library of CUDA has a directory of its own.
    let library = found.join("cccl");
    let has_library = library.is_dir();
    let mut dirs = vec![found];
    if has_library {
        dirs.push(library);
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_in_the_words() {
        let words = find(Some(Path::new("/nowhere/libnvrtc.so.13"))).err().unwrap();
        assert!(words.contains("/nowhere/libnvrtc.so.13"), "{words}");
    }

    #[test]
    fn a_library_that_is_none_is_refused_with_words() {
        let words = find(Some(Path::new("libc.so.6"))).err().unwrap();
        assert!(words.contains("nvrtcVersion"), "{words}");
    }
}
