//! One content for all, fetched from whoever holds it.

use ringfold_proto::dtype::DType;
use ringfold_proto::id::Revision;
use ringfold_proto::shared_state::{StateEntry, SyncOffer, SyncStrategy};

/// A state of as many tensors as there are hashes.
pub fn offer(revision: u64, hashes: &[u128]) -> SyncOffer {
    let entry = |(i, hash): (usize, &u128)| StateEntry {
        key: format!("w{i}"),
        dtype: DType::F32,
        count: 10,
        allow_content_inequality: false,
        hash: *hash,
    };
    let entries = hashes.iter().enumerate().map(entry).collect();
    SyncOffer { revision: Revision(revision), strategy: SyncStrategy::EnforcePopular, entries }
}
