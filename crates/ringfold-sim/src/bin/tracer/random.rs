//! Unpredictable bytes, for ids, nonces and seeds.

use ringfold_proto::hello::Nonce;
use std::fs::File;
use std::io::{self, Read};

/// Fresh bytes from the system's generator.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A fresh id.
pub fn id() -> io::Result<u128> {
    bytes().map(u128::from_le_bytes)
}

/// A fresh nonce.
pub fn nonce() -> io::Result<Nonce> {
    bytes().map(Nonce)
}
