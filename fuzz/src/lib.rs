//! All decoders of bytes from other processes and files. Each is a target of the same name in `fuzz_targets`.

use ringfold_fuzz::Decoder;

/// The decoders of all crates.
pub fn decoders() -> impl Iterator<Item = Decoder> {
    let private = [ringfold_fabric::fuzzing::DECODERS, ringfold_cuda::fuzzing::DECODERS, ringfold::fuzzing::DECODERS];
    ringfold_fuzz::proto::DECODERS.iter().chain(private.into_iter().flatten()).copied()
}

/// The decoder of a target.
pub fn decoder(target: &str) -> Decoder {
    decoders().find(|(name, _)| *name == target).unwrap_or_else(|| panic!("unknown target {target}"))
}

/// The program of a target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        static DECODER: std::sync::LazyLock<ringfold_fuzz::Decoder> =
            std::sync::LazyLock::new(|| $crate::decoder($name));
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            ringfold_fuzz::check(*DECODER, bytes);
        });
    };
}
