//! Compilation by NVRTC; no device is needed. Without NVRTC each test prints that it was skipped.

use crate::skip;
use ringfold_cuda::headers::HEADERS;
use ringfold_cuda::nvrtc::{CompileError, CompileRequest, Compiler, host_headers};
use std::path::PathBuf;

/// The compiler; none after printing that the test is skipped.
fn compiler(test: &str) -> Option<&'static Compiler> {
    let compiler = Compiler::load(None);
    let available = compiler.as_ref().map(|_| ()).map_err(ToString::to_string);
    if !skip::check(test, available) {
        return None;
    }
    compiler.ok()
}

fn request(source: &str) -> CompileRequest<'_> {
    CompileRequest { source, name: "kernel.cu", arch: "sm_90", ..CompileRequest::default() }
}

#[test]
fn real_architectures_give_cubins_and_virtual_ones_ptx() {
    let Some(compiler) = compiler("real_architectures_give_cubins_and_virtual_ones_ptx") else { return };
    let source = r#"extern "C" __global__ void set(int* at, int value) { *at = value; }"#;
    let cubin = compiler.compile(&request(source)).unwrap();
    assert!(cubin.starts_with(b"\x7fELF"), "{:?}", &cubin[..8]);
    let ptx = compiler.compile(&CompileRequest { arch: "compute_80", ..request(source) }).unwrap();
    assert!(String::from_utf8_lossy(&ptx).contains(".visible .entry set("));
    assert!(format!("{compiler:?}").contains("libnvrtc"), "{compiler:?}");
}

/// The types and headers that users' sources expect, in both language standards.
#[test]
fn standard_types_and_headers_are_available() {
    let Some(compiler) = compiler("standard_types_and_headers_are_available") else {
        return;
    };
    let includes: String = host_headers::ALL.iter().map(|(name, _)| format!("#include <{name}>\n")).collect();
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
            compiler.compile(&CompileRequest { options: &options, ..request(&source) }).unwrap();
        }
    }
}

#[test]
fn cuda_headers_are_found_next_to_the_compiler() {
    let name = "cuda_headers_are_found_next_to_the_compiler";
    let Some(compiler) = compiler(name) else { return };
    if !skip::check(name, (!compiler.include_dirs().is_empty()).then_some(()).ok_or("CUDA's headers".into()))
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
        compiler.compile(&CompileRequest { arch, options: &options, ..request(source) }).unwrap();
    }
}

/// Our integer types are those of CUDA's own C++ library.
#[test]
fn host_headers_agree_with_the_cuda_library() {
    let name = "host_headers_agree_with_the_cuda_library";
    let Some(compiler) = compiler(name) else { return };
    let has_library = compiler.include_dirs().iter().any(|dir| dir.join("cuda/std/cstdint").is_file());
    if !skip::check(name, has_library.then_some(()).ok_or("CUDA's C++ library".into())) {
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
        compiler.compile(&request(&source)).unwrap();
    }
}

#[test]
fn every_device_header_compiles_alone_in_both_standards() {
    let Some(compiler) = compiler("every_device_header_compiles_alone_in_both_standards") else { return };
    for (name, _) in HEADERS {
        let source = format!("#include <{name}>\nextern \"C\" __global__ void nothing() {{}}\n");
        for (arch, standard) in [("sm_90", "-std=c++17"), ("compute_80", "-std=c++20")] {
            let options = [standard.to_owned()];
            let compiled = compiler.compile(&CompileRequest { arch, options: &options, ..request(&source) });
            assert!(compiled.is_ok(), "{name}: {}", compiled.unwrap_err());
        }
    }
}

/// Programs include one header for what they call.
#[test]
fn headers_bring_the_functions_that_programs_expect_of_them() {
    let name = "headers_bring_the_functions_that_programs_expect_of_them";
    let Some(compiler) = compiler(name) else { return };
    let calls = [
        ("copy_device", "copyToPackets(to, from, bytes, threadIdx.x, blockDim.x, 1)"),
        ("copy_device", "copyFromPackets<LL8Packet>(to, from, bytes, threadIdx.x, blockDim.x, 1)"),
        ("copy_device", "copy<8>(to, from, bytes, threadIdx.x, blockDim.x)"),
        ("atomic_device", "atomicStore(words, 1, memoryOrderRelease)"),
        ("atomic_device", "words[1] = atomicLoad<uint64_t, scopeDevice>(words, memoryOrderAcquire)"),
        ("atomic_device", "words[1] = atomicFetchAdd(words, 1, memoryOrderRelaxed)"),
        ("bulk_device", "__shared__ BulkBarrier one; bulkLoad(shared, from, bytes, one); one.wait(0)"),
        ("bulk_device", "bulkStore(to, shared, bytes); bulkCommit(); bulkWait()"),
    ];
    for (header, call) in calls {
        let source = format!(
            "#include <mscclpp/{header}.hpp>\nusing namespace mscclpp;\n\
             extern \"C\" __global__ void k(void* to, const void* from, uint64_t* words, uint32_t bytes) {{\n\
             __shared__ char shared[128]; shared[0] = 0; {call}; }}\n"
        );
        for (arch, standard) in [("sm_75", "-std=c++17"), ("sm_90", "-std=c++17"), ("sm_90", "-std=c++20")] {
            let options = [standard.to_owned()];
            let compiled = compiler.compile(&CompileRequest { arch, options: &options, ..request(&source) });
            assert!(compiled.is_ok(), "{call}: {}", compiled.unwrap_err());
        }
    }
}

#[test]
fn an_error_names_the_source_and_line() {
    let Some(compiler) = compiler("an_error_names_the_source_and_line") else { return };
    let wrong = "extern \"C\" __global__ void k(int* a) {\n  a[0] = nowhere;\n}\n";
    let error = compiler.compile(&CompileRequest { name: "/src/wrong.cu", ..request(wrong) }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CompileError::Rejected { .. }), "{text}");
    assert!(text.contains("/src/wrong.cu(2)") && text.contains("nowhere"), "{text}");
}

#[test]
fn unknown_architectures_and_options_are_reported() {
    let Some(compiler) = compiler("unknown_architectures_and_options_are_reported") else {
        return;
    };
    let source = "extern \"C\" __global__ void k() {}";
    let text = compiler.compile(&CompileRequest { arch: "sm_1", ..request(source) }).unwrap_err().to_string();
    assert!(text.contains("sm_1") && text.contains("gpu-architecture"), "{text}");
    let options = ["--no-such-option".to_owned()];
    let text =
        compiler.compile(&CompileRequest { options: &options, ..request(source) }).unwrap_err().to_string();
    assert!(text.contains("no-such-option"), "{text}");
}

#[test]
fn macros_and_headers_from_memory_and_disk_are_used() {
    let Some(compiler) = compiler("macros_and_headers_from_memory_and_disk_are_used") else {
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
    let compiled = compiler.compile(&CompileRequest {
        defines: &defines,
        include_dirs: &include_dirs,
        headers: &headers,
        ..request(source)
    });
    std::fs::remove_dir_all(&dir).unwrap();
    compiled.unwrap();
}

#[test]
fn a_source_with_a_nul_byte_is_rejected() {
    let Some(compiler) = compiler("a_source_with_a_nul_byte_is_rejected") else { return };
    let text = compiler.compile(&request("int a;\0int b;")).unwrap_err().to_string();
    assert!(text.contains("NUL"), "{text}");
}
