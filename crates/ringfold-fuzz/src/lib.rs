//! Checks decoders of bytes from other processes and files.
//!
//! A crate lists its decoders as [`Decoder`]s: this one those of `ringfold-proto` ([`proto::DECODERS`]), the others in
//! their `fuzzing.rs`. Each has a corpus in `fuzz/corpus`. The tests pass the corpus and changed inputs to them
//! ([`test_decoders`]); the targets in `fuzz` pass what libFuzzer invents. No decoder may panic or exceed [`memory_max`].

mod allocation;
pub mod proto;

pub use allocation::{held_bytes, peak_bytes};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::fs;
use std::path::{Path, PathBuf};

/// The name of a target, and its function: passes bytes to decoders, encodes and decodes again what they accept, and
/// returns whether any accepted them.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// A valid input for the target of this name.
pub type Seed = (&'static str, Vec<u8>);

/// Changed inputs per target and test run.
const CASES: u32 = 1000;

/// The memory that a function of the list may hold for an input of so many bytes, for all its decoders and encoders.
pub fn memory_max(len: usize) -> usize {
    (16 << 10) + 256 * len
}

/// Passes an input to a decoder. Returns whether it was accepted.
///
/// # Panics
/// If the decoder panics, does not decode what it has encoded, or needs too much memory.
pub fn check((name, decode): Decoder, bytes: &[u8]) -> bool {
    let mut accepted = false;
    let peak = peak_bytes(|| accepted = decode(bytes));
    assert!(peak <= memory_max(bytes.len()), "{name} takes {peak} bytes of memory for {} bytes", bytes.len());
    accepted
}

/// The corpus of a target. Its files are inputs; the names of valid ones start with `seed-`.
pub fn corpus(name: &str) -> PathBuf {
    fuzz_folder().join("corpus").join(name)
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Tests decoders with their corpus, and with changed inputs of it. `RINGFOLD_BLESS=1` stores the seeds in the corpus.
///
/// # Panics
/// If a check fails, or a seed is missing in the corpus or not accepted.
pub fn test_decoders(decoders: &[Decoder], seeds: &[Seed]) {
    for (target, _) in seeds {
        assert!(decoders.iter().any(|(name, _)| name == target), "unknown target {target}");
    }
    for decoder in decoders {
        let target = fuzz_folder().join("fuzz_targets").join(decoder.0).with_extension("rs");
        assert!(target.exists(), "no target for {}: {}", decoder.0, target.display());
        let own = || seeds.iter().filter(|(target, _)| *target == decoder.0).map(|(_, bytes)| &bytes[..]);
        if std::env::var_os("RINGFOLD_BLESS").is_some_and(|set| set == "1") {
            store_seeds(&corpus(decoder.0), own());
        }
        let inputs = read_corpus(&corpus(decoder.0));
        for seed in own() {
            let is_kept = inputs.iter().any(|(_, bytes)| bytes == seed);
            assert!(is_kept, "a seed of {} is not in its corpus: set RINGFOLD_BLESS=1", decoder.0);
        }
        for (path, bytes) in &inputs {
            let accepted = check(*decoder, bytes);
            let is_seed = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"seed-"));
            assert!(accepted || !is_seed, "not accepted: {}", path.display());
        }
        test_changed(*decoder, &inputs);
    }
}

fn store_seeds<'a>(folder: &Path, seeds: impl Iterator<Item = &'a [u8]>) {
    fs::create_dir_all(folder).expect("the corpus can be written");
    for (path, _) in read_corpus(folder) {
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"seed-")) {
            fs::remove_file(path).expect("the corpus can be written");
        }
    }
    for (number, seed) in seeds.enumerate() {
        fs::write(folder.join(format!("seed-{number:02}")), seed).expect("the corpus can be written");
    }
}

fn read_corpus(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("no corpus {}: {why}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("its entries can be read").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("inputs can be read"))).collect()
}

/// A change of an input.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    /// The end of another input from there on.
    Join(Index, Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let index = any::<Index>;
    let edges = prop_oneof![Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    let change = prop_oneof![
        4 => (index(), edges).prop_map(|(at, byte)| Change::Set(at, byte)),
        4 => (index(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => index().prop_map(Change::Cut),
        2 => (index(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (index(), 1usize..9).prop_map(|(at, bytes)| Change::Remove(at, bytes)),
        1 => (index(), 1usize..65).prop_map(|(at, bytes)| Change::Repeat(at, bytes)),
        1 => (index(), index()).prop_map(|(at, from)| Change::Join(at, from)),
    ];
    prop::collection::vec(change, 0..6)
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>, other: &[u8]) {
        let len = bytes.len();
        let end = |at: usize, count: usize| len.min(at + count);
        match self {
            Self::Insert(at, more) => {
                let at = at.index(len + 1);
                bytes.splice(at..at, more.iter().copied());
            }
            _ if len == 0 => {}
            Self::Set(at, byte) => bytes[at.index(len)] = *byte,
            Self::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Self::Cut(at) => bytes.truncate(at.index(len)),
            Self::Remove(at, count) => {
                let at = at.index(len);
                bytes.drain(at..end(at, *count));
            }
            Self::Repeat(at, count) => {
                let at = at.index(len);
                let copy = bytes[at..end(at, *count)].to_vec();
                bytes.splice(at..at, copy);
            }
            Self::Join(at, from) => {
                bytes.truncate(at.index(len));
                bytes.extend(&other[from.index(other.len() + 1)..]);
            }
        }
    }
}

/// Passes changed inputs of the corpus to a decoder.
fn test_changed(decoder: Decoder, inputs: &[(PathBuf, Vec<u8>)]) {
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let strategy = (any::<Index>(), any::<Index>(), changes());
    let result = TestRunner::new(config).run(&strategy, |(one, other, changes)| {
        let mut bytes = one.get(inputs).1.clone();
        for change in &changes {
            change.apply(&mut bytes, &other.get(inputs).1);
        }
        std::panic::catch_unwind(|| check(decoder, &bytes)).map(drop).map_err(|why| {
            let why = why.downcast_ref::<String>().map_or("it panicked", |why| why);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            TestCaseError::fail(format!("{}: {why}; store the input in its corpus: {hex}", decoder.0))
        })
    });
    if let Err(why) = result {
        panic!("{why}");
    }
}
