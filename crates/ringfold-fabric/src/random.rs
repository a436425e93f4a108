//! Randomness from the operating system.

use ringfold_proto::hello::Nonce;
use std::io;

/// Random bytes.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no randomness: {error}")))?;
    Ok(bytes)
}

/// A unique number.
pub fn id() -> io::Result<u128> {
    bytes().map(u128::from_le_bytes)
}

/// A nonce for a handshake.
pub fn nonce() -> io::Result<Nonce> {
    bytes().map(Nonce)
}
