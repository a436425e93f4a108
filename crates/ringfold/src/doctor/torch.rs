//! The PyTorch that this process has loaded, by the files that it has mapped. Nothing is imported.

use ringfold_proto::doctor::Finding;
use std::path::Path;

/// A library of every PyTorch.
const LIBRARY: &str = "/torch/lib/libtorch_cpu.so";

/// Its version; none if this process has not loaded it.
pub(super) fn examine() -> Option<Finding> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let library = library.into_iter().find(|path| path.ends_with(LIBRARY))?;
    let folder = Path::new(library).parent()?.parent()?;
    let text = std::fs::read_to_string(folder.join("version.py")).unwrap_or_default();
    Some(Finding::ok("python.torch", describe(value(&text, "__version__"), value(&text, "cuda"))))
}

/// The string that a Python file assigns to a name.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let assigned = text.lines().find_map(|line| {
        let (left, right) = line.split_once('=')?;
        (left.split(':').next()?.trim() == name).then_some(right.trim())
    });
    assigned?.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])
}

/// A version of torch, and the CUDA version that it was built for.
pub fn describe(version: Option<&str>, cuda: Option<&str>) -> String {
    match (version, cuda) {
        (None, _) => "torch of an unknown version".to_owned(),
        (Some(version), None) => format!("torch {version}, without CUDA"),
        (Some(version), Some(cuda)) => format!("torch {version}, for CUDA {cuda}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_file() {
        let text = "__all__ = ['__version__']\n__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n";
        assert_eq!(value(text, "__version__"), Some("2.15.0+cu132"));
        assert_eq!((value(text, "cuda"), value(text, "hip"), value(text, "xpu")), (Some("13.2"), None, None));
        assert_eq!(
            describe(value(text, "__version__"), value(text, "cuda")),
            "torch 2.15.0+cu132, for CUDA 13.2"
        );
        assert_eq!(examine(), None);
    }
}
