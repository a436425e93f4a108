//! Compiles the C and C++ programs of these tests.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// A language standard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    C99,
    Cpp17,
    Cpp20,
}

/// How a program finds the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linking {
    Shared,
    Static,
}

/// A program to be compiled; warnings are errors.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    language: Language,
    linking: Linking,
    flags: Vec<&'static str>,
}

impl Language {
    fn compiler(self) -> &'static str {
        if self == Self::C99 { "gcc" } else { "g++" }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::C99 => &["-x", "c", "-std=c99"],
            Self::Cpp17 => &["-x", "c++", "-std=c++17"],
            Self::Cpp20 => &["-x", "c++", "-std=c++20"],
        }
    }
}

impl Source {
    /// A program of `tests/programs`.
    pub fn program(name: &str, language: Language) -> Self {
        Self::at(manifest().join("tests/programs").join(name), language)
    }

    /// A program of the project's `examples`.
    pub fn example(name: &str, language: Language) -> Self {
        Self::at(root().join("examples").join(name), language)
    }

    fn at(path: PathBuf, language: Language) -> Self {
        Self { path, language, linking: Linking::Shared, flags: Vec::new() }
    }

    /// The same, with this flag.
    pub fn flag(mut self, flag: &'static str) -> Self {
        self.flags.push(flag);
        self
    }

    /// The same, with the library in it.
    pub fn linked_statically(self) -> Self {
        Self { linking: Linking::Static, ..self }
    }

    /// Compiles and links it, unless that was done since anything of it changed.
    pub fn compile(&self) -> PathBuf {
        let name = self.path.file_name().unwrap().to_str().unwrap();
        let kind = if self.path.starts_with(root().join("examples")) { "example" } else { "program" };
        let made = format!("{kind}-{name}-{:?}-{:?}", self.language, self.linking);
        let output = scratch().join(&made);
        // Tests run side by side, as threads or as processes, and some run the same program.
        let lock = File::create(scratch().join(format!("{made}.lock"))).unwrap();
        lock.lock().unwrap();
        if !self.is_compiled(&output) {
            self.compile_to(&output);
        }
        output
    }

    fn is_compiled(&self, output: &Path) -> bool {
        let Some(made) = changed(output) else { return false };
        let folders = [self.path.parent().unwrap().to_owned(), root().join("include")];
        let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let inputs =
            files.map(|file| file.unwrap().path()).chain([library("libpccl.so"), library("libpccl.a")]);
        inputs.filter_map(|input| changed(&input)).all(|input| input < made)
    }

    fn compile_to(&self, output: &Path) {
        let mut command = Command::new(self.language.compiler());
        command
            .args(self.language.flags())
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
            .args(&self.flags);
        command.arg("-I").arg(root().join("include")).arg(&self.path).args(["-x", "none", "-o"]).arg(output);
        match self.linking {
            Linking::Shared => {
                command.arg("-L").arg(libraries()).arg("-lpccl");
            }
            Linking::Static => {
                command.arg(library("libpccl.a"));
                command.args(["-lgcc_s", "-lutil", "-lrt", "-lm", "-ldl"]);
            }
        }
        succeed(command.arg("-pthread"));
    }
}

/// Runs a tool, which must succeed.
pub fn succeed(command: &mut Command) -> String {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().unwrap_or_else(|error| panic!("cannot start {tool} ({error}): install {tool}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}:\n{text}", output.status);
    text
}

/// The directory of the library: next to these tests.
pub fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A directory with the library under its SONAME.
pub fn runtime_libraries() -> PathBuf {
    let folder = scratch().join("runtime");
    fs::create_dir_all(&folder).unwrap();
    let name = concat!("libpccl.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    match symlink(library("libpccl.so"), folder.join(name)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("cannot link {name}: {error}"),
        _ => folder,
    }
}

/// A file of the library.
fn library(name: &str) -> PathBuf {
    libraries().join(name)
}

/// A directory for the output of these tests.
pub fn scratch() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The root of the project.
pub fn root() -> PathBuf {
    manifest().ancestors().nth(2).unwrap().to_owned()
}

fn manifest() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}
