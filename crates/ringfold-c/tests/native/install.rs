//! An installed library is found by pkg-config and by CMake.

use crate::compiler::{libraries, root, scratch, succeed};
use ringfold_lab::skip::report;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");

fn installed(name: &str) -> PathBuf {
    let prefix = scratch().join(name);
    let _ = fs::remove_dir_all(&prefix);
    let mut install = Command::new(root().join("scripts/install-libpccl"));
    succeed(install.arg("--prefix").arg(&prefix).arg("--from").arg(libraries()));
    prefix
}

fn is_here(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok()
}

#[test]
fn pkg_config_finds_an_installed_library() {
    if !is_here("pkg-config") {
        report("pkg_config_finds_an_installed_library", "pkg-config is not installed");
        return;
    }
    let prefix = installed("prefix-pkg-config");
    let mut ask = Command::new("pkg-config");
    let flags = succeed(
        ask.args(["--cflags", "--libs", "pccl"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
    );
    let program = prefix.join("hello_world");
    let mut compile = Command::new("gcc");
    compile.arg("-std=c99").arg(root().join("examples/c/hello_world.c")).arg("-o").arg(&program);
    succeed(compile.args(flags.split_whitespace()));
    // An address that is none shows that it starts, without a master.
    let mut run = Command::new(&program);
    let ended = run.arg("nowhere").env("LD_LIBRARY_PATH", prefix.join("lib")).output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn cmake_finds_an_installed_library() {
    if !is_here("cmake") {
        report("cmake_finds_an_installed_library", "cmake is not installed");
        return;
    }
    let prefix = installed("prefix-cmake");
    let project = prefix.join("project");
    fs::create_dir_all(&project).unwrap();
    let example = root().join("examples/c/hello_world.c");
    // The versions that must be found, each in a scope of its own, and one that must not be.
    let (major, minor): (&str, u32) = (MAJOR, env!("CARGO_PKG_VERSION_MINOR").parse().unwrap());
    let next = minor + 1;
    let versions = format!(
        "function(found)\n  find_package(pccl ${{ARGV}} REQUIRED)\nendfunction()\n\
         found({major})\nfound({major}.{minor})\nfound({VERSION} EXACT)\nfound({major}.{minor}...<{major}.{next})\n\
         find_package(pccl {major}.{next} QUIET)\nif(pccl_FOUND)\n  message(FATAL_ERROR too-new)\nendif()\n"
    );
    let lists = format!(
        "cmake_minimum_required(VERSION 3.19)\nproject(hello C)\n{versions}find_package(pccl {major}.{minor} REQUIRED)\n\
         foreach(kind pccl pccl_static)\n  add_executable(hello_${{kind}} {})\n  \
         target_link_libraries(hello_${{kind}} PRIVATE pccl::${{kind}})\nendforeach()\n",
        example.display()
    );
    fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    let build = project.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build);
    succeed(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    succeed(Command::new("cmake").arg("--build").arg(&build));
    for program in ["hello_pccl", "hello_pccl_static"] {
        let ended = Command::new(build.join(program)).arg("nowhere").output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{program}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn an_installed_library_has_a_versioned_name_and_no_debug_information() {
    let lib = installed("prefix-layout").join("lib");
    let soname = format!("libpccl.so.{MAJOR}");
    let link = |name: &str| fs::read_link(lib.join(name)).unwrap();
    assert_eq!(link("libpccl.so"), PathBuf::from(&soname));
    assert_eq!(link(&soname), PathBuf::from(format!("libpccl.so.{VERSION}")));
    let readelf = |option, name| succeed(Command::new("readelf").args(["-W", option]).arg(lib.join(name)));
    let dynamic = readelf("-d", "libpccl.so");
    assert!(dynamic.contains(&format!("Library soname: [{soname}]")), "{dynamic}");
    for name in ["libpccl.so", "libpccl.a"] {
        assert!(!readelf("-S", name).contains(" .debug_info"), "{name} holds debug information");
    }
}
