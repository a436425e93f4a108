//! Exchanges the result of a step between all ranks, so that all continue or all fail.

use crate::{Error, Group, GroupOp};
use ringfold_proto::dtype::DType;
use ringfold_proto::text::Printable;

/// Bytes of a record: success flag, length, and data or error text.
const RECORD_BYTES: usize = 1024;
const HEADER_BYTES: usize = 3;
const DATA_BYTES_MAX: usize = RECORD_BYTES - HEADER_BYTES;

/// Exchanges results. Returns the data of all ranks, or the error of the first rank that failed.
pub(super) fn agree(
    group: &Group,
    mine: Result<Vec<u8>, String>,
) -> Result<Result<Vec<Vec<u8>>, String>, Error> {
    let record = encode(&mine);
    let mut records = vec![0; RECORD_BYTES * group.world()];
    group.run_bytes(GroupOp::AllGather, DType::U8, &record, &mut records)?;
    let mut all = Vec::with_capacity(group.world());
    for (rank, record) in records.chunks_exact(RECORD_BYTES).enumerate() {
        match decode(record) {
            Ok(theirs) => all.push(theirs),
            Err(why) => return Ok(Err(format!("rank {rank}: {why}"))),
        }
    }
    Ok(Ok(all))
}

pub(crate) fn encode(mine: &Result<Vec<u8>, String>) -> Vec<u8> {
    let too_long;
    let (is_ok, text) = match mine {
        Ok(bytes) if bytes.len() > DATA_BYTES_MAX => {
            // Without its end the data would mean something else to the other ranks.
            too_long =
                format!("the data to exchange has {} bytes, at most {DATA_BYTES_MAX} fit", bytes.len());
            (0, too_long.as_bytes())
        }
        Ok(bytes) => (1, &bytes[..]),
        Err(why) => (0, &why.as_bytes()[..why.len().min(DATA_BYTES_MAX)]),
    };
    let mut record = vec![is_ok];
    record.extend_from_slice(&(text.len() as u16).to_le_bytes());
    record.extend_from_slice(text);
    record.resize(RECORD_BYTES, 0);
    record
}

pub(crate) fn decode(record: &[u8]) -> Result<Vec<u8>, String> {
    let ([status, length @ ..], text) = record.split_first_chunk::<HEADER_BYTES>().ok_or("invalid record")?;
    let text = text.get(..usize::from(u16::from_le_bytes(*length))).ok_or("invalid record")?;
    match status {
        1 => Ok(text.to_vec()),
        _ => Err(Printable(String::from_utf8_lossy(text)).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_they_were_encoded_and_only_long_errors_are_truncated() {
        assert_eq!(decode(&encode(&Ok(vec![1, 2, 3]))), Ok(vec![1, 2, 3]));
        assert_eq!(decode(&encode(&Err("no device".into()))), Err("no device".into()));
        let long = "x".repeat(5000);
        assert_eq!(decode(&encode(&Err(long))).unwrap_err().len(), RECORD_BYTES - HEADER_BYTES);
        let largest = vec![7; DATA_BYTES_MAX];
        assert_eq!(decode(&encode(&Ok(largest.clone()))), Ok(largest));
        let why = decode(&encode(&Ok(vec![7; DATA_BYTES_MAX + 1]))).unwrap_err();
        assert!(why.contains("1022 bytes, at most 1021"), "{why}");
        assert!(decode(&[1, 0xff, 0xff, 0]).is_err() && decode(&[1, 0]).is_err());
    }
}
