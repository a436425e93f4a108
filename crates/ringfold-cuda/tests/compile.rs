//! Kernels are compiled where there is NVRTC; no device is needed. Without, each test tells that it was skipped.

use crate::skip;
use ringfold_cuda::headers::HEADERS;
use ringfold_cuda::nvrtc::{CompileError, Compiler, Job, stand_ins};
use std::path::PathBuf;

/// The compiler. If there is none, the test's name was told.
fn compiler(test: &str) -> Option<&'static Compiler> {
    let compiler = Compiler::load(None);
    let available = compiler.as_ref().map(|_| ()).map_err(ToString::to_string);
    if !skip::unless(test, available) {
        return None;
    }
    compiler.ok()
}

fn job(source: &str) -> Job<'_> {
    Job { source, name: "kernel.cu", arch: "sm_90", ..Job::default() }
}

#[test]
fn code_for_a_device_is_a_cubin_and_for_a_family_it_is_ptx() {
    let Some(compiler) = compiler("code_for_a_device_is_a_cubin_and_for_a_family_it_is_ptx") else { return };
    let source = r#"extern "C" __global__ void set(int* at, int value) { *at = value; }"#;
    let cubin = compiler.compile(&job(source)).unwrap();
    assert!(cubin.starts_with(b"\x7fELF"), "{:?}", &cubin[..8]);
    let ptx = compiler.compile(&Job { arch: "compute_80", ..job(source) }).unwrap();
    assert!(String::from_utf8_lossy(&ptx).contains(".visible .entry set("));
    assert!(format!("{compiler:?}").contains("libnvrtc"), "{compiler:?}");
}

/// What users' sources take for granted, by both standards that they are written in.
#[test]
fn sources_find_the_types_and_headers_that_they_take_for_granted() {
    let Some(compiler) = compiler("sources_find_the_types_and_headers_that_they_take_for_granted") else {
        return;
    };
    let includes: String = stand_ins::ALL.iter().map(|(name, _)| format!("#include <{name}>\n")).collect();
    let body = r#"
        static_assert(sizeof(uint64_t) == 8 && sizeof(std::int8_t) == 1 && sizeof(size_t) == 8);
        static_assert(sizeof(uintptr_t) == 8 && sizeof(ptrdiff_t) == 8);
        extern "C" __global__ void count(uint64_t* at, size_t n, std::uint32_t k) {
            assert(at != nullptr && "there is a place");
            if (n > 8) printf("%d", int(n));
            at[0] = n + k + threadIdx.x;
        }"#;
    let limits =
        "static_assert(INT32_MAX == 2147483647 && UINT64_MAX + 1 == 0 && INT_MAX > 0 && FLT_MAX > 1);";
    for standard in ["-std=c++17", "--std=c++20"] {
        let options = [standard.to_owned()];
        for source in [body.to_owned(), format!("{includes}{body}{limits}")] {
            compiler.compile(&Job { options: &options, ..job(&source) }).unwrap();
        }
    }
}

#[test]
fn headers_of_cuda_are_found_beside_the_compiler() {
    let name = "headers_of_cuda_are_found_beside_the_compiler";
    let Some(compiler) = compiler(name) else { return };
    if !skip::unless(name, (!compiler.include_dirs().is_empty()).then_some(()).ok_or("CUDA's headers".into()))
    {
        return;
    }
    let source = r#"
        #include <cuda_runtime.h>
        #include <cuda_fp16.h>
        #include <cuda_bf16.h>
        #include <cstdint>
        extern "C" __global__ void add(__half2* a, __nv_bfloat162* b, uint64_t n) {
            a[n] = __hadd2(a[0], a[1]);
            b[n] = __hadd2(b[0], b[1]);
        }"#;
    for (arch, standard) in [
        ("sm_90", "-std=c++17"),
        ("sm_90", "-std=c++20"),
        ("compute_80", "-std=c++17"),
        ("compute_80", "-std=c++20"),
    ] {
        let options = [standard.to_owned()];
        compiler.compile(&Job { arch, options: &options, ..job(source) }).unwrap();
    }
}

/// Our integer types and those of CUDA's own C++ library are the same.
#[test]
fn the_stand_ins_agree_with_the_library_of_cuda() {
    let name = "the_stand_ins_agree_with_the_library_of_cuda";
    let Some(compiler) = compiler(name) else { return };
    let has_library = compiler.include_dirs().iter().any(|dir| dir.join("cuda/std/cstdint").is_file());
    if !skip::unless(name, has_library.then_some(()).ok_or("CUDA's C++ library".into())) {
        return;
    }
    for order in [
        "#include <cstdint>\n#include <cuda/std/cstdint>\n",
        "#include <cuda/std/cstdint>\n#include <climits>\n#include <stdint.h>\n",
    ] {
        let source = format!(
            "{order}#include <cuda/atomic>\nextern \"C\" __global__ void k(uint64_t* a) {{\n\
             cuda::atomic_ref<uint64_t, cuda::thread_scope_system> r(*a); r.store(INT32_MAX); }}"
        );
        compiler.compile(&job(&source)).unwrap();
    }
}

#[test]
fn every_header_of_ours_compiles_alone_by_both_standards() {
    let Some(compiler) = compiler("every_header_of_ours_compiles_alone_by_both_standards") else { return };
    for (name, _) in HEADERS {
        let source = format!("#include <{name}>\nextern \"C\" __global__ void nothing() {{}}\n");
        for (arch, standard) in [("sm_90", "-std=c++17"), ("compute_80", "-std=c++20")] {
            let options = [standard.to_owned()];
            let compiled = compiler.compile(&Job { arch, options: &options, ..job(&source) });
            assert!(compiled.is_ok(), "{name}: {}", compiled.unwrap_err());
        }
    }
}

#[test]
fn a_mistake_is_told_with_the_name_and_line_of_the_source() {
    let Some(compiler) = compiler("a_mistake_is_told_with_the_name_and_line_of_the_source") else { return };
    let wrong = "extern \"C\" __global__ void k(int* a) {\n  a[0] = nowhere;\n}\n";
    let error = compiler.compile(&Job { name: "/src/wrong.cu", ..job(wrong) }).unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, CompileError::Rejected { .. }), "{words}");
    assert!(words.contains("/src/wrong.cu(2)") && words.contains("nowhere"), "{words}");
}

#[test]
fn a_device_or_an_option_that_the_compiler_does_not_know_is_told() {
    let Some(compiler) = compiler("a_device_or_an_option_that_the_compiler_does_not_know_is_told") else {
        return;
    };
    let source = "extern \"C\" __global__ void k() {}";
    let words = compiler.compile(&Job { arch: "sm_1", ..job(source) }).unwrap_err().to_string();
    assert!(words.contains("sm_1") && words.contains("gpu-architecture"), "{words}");
    let options = ["--no-such-option".to_owned()];
    let words = compiler.compile(&Job { options: &options, ..job(source) }).unwrap_err().to_string();
    assert!(words.contains("no-such-option"), "{words}");
}

#[test]
fn macros_and_headers_from_memory_and_from_disk_reach_the_source() {
    let Some(compiler) = compiler("macros_and_headers_from_memory_and_from_disk_reach_the_source") else {
        return;
    };
    let dir = std::env::temp_dir().join(format!("ringfold-compile-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("from_disk.cuh"), "#define FROM_DISK 3\n").unwrap();
    let define = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let defines = [define("WIDTH", "(4 + 4)"), define("FLAG", "")];
    let include_dirs: [PathBuf; 1] = [dir.clone()];
    let source = "#include <from_memory.cuh>\n#include \"from_disk.cuh\"\n#ifndef FLAG\n#error no flag\n#endif\n\
                  static_assert(WIDTH == 8 && FROM_MEMORY == 2 && FROM_DISK == 3);\n\
                  extern \"C\" __global__ void k() {}\n";
    let headers = [("from_memory.cuh", "#define FROM_MEMORY 2\n")];
    let compiled = compiler.compile(&Job {
        defines: &defines,
        include_dirs: &include_dirs,
        headers: &headers,
        ..job(source)
    });
    std::fs::remove_dir_all(&dir).unwrap();
    compiled.unwrap();
}

#[test]
fn a_source_with_a_zero_in_it_is_refused_with_words() {
    let Some(compiler) = compiler("a_source_with_a_zero_in_it_is_refused_with_words") else { return };
    let words = compiler.compile(&job("int a;\0int b;")).unwrap_err().to_string();
    assert!(words.contains("zero"), "{words}");
}
