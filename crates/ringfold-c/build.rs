//! Sets the versioned SONAME of the shared library, `libpccl.so.0`, and links that name beside it, so that programs that were
//! linked against the build directory also start there.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpccl.so.{major}");
        let out = std::env::var_os("OUT_DIR").unwrap_or_default();
        if let Some(profile) = std::path::Path::new(&out).ancestors().nth(3) {
            // It is there already after the first build.
            let _ = std::os::unix::fs::symlink("libpccl.so", profile.join(format!("libpccl.so.{major}")));
        }
    }
}
