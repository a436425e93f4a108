//! The programs of the fuzz targets. Each passes inputs to one function of a crate's list of decoders.

use ringfold_fuzz::Decoder;

/// The decoder of a target. Constant, so that a program holds one decoder: libFuzzer reads all counters after each input.
pub const fn find(decoders: &[Decoder], target: &str) -> Decoder {
    let mut index = 0;
    while index < decoders.len() {
        if is_same(decoders[index].0.as_bytes(), target.as_bytes()) {
            return decoders[index];
        }
        index += 1;
    }
    panic!("unknown target")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// The program of a target, by its list and its name.
#[macro_export]
macro_rules! target {
    ($decoders:path, $name:literal) => {
        const DECODER: ringfold_fuzz::Decoder = $crate::find($decoders, $name);
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            ringfold_fuzz::check(DECODER, bytes);
        });
    };
}
