//! Ranks tell each other what they have, or why they have nothing: so all of them go the same way.

use crate::{Error, Group, GroupOp};
use ringfold_proto::dtype::DType;

/// Bytes of a word: whether it is well, how long it is, and what it says.
const WORD_BYTES: usize = 1024;
const HEAD_BYTES: usize = 3;

/// Tells all ranks what this one has. What everyone has, or who has nothing and why.
pub(super) fn agree(
    group: &Group,
    mine: Result<Vec<u8>, String>,
) -> Result<Result<Vec<Vec<u8>>, String>, Error> {
    let word = encode(&mine);
    let mut words = vec![0; WORD_BYTES * group.world()];
    group.run_bytes(GroupOp::AllGather, DType::U8, &word, &mut words)?;
    let mut all = Vec::with_capacity(group.world());
    for (rank, word) in words.chunks_exact(WORD_BYTES).enumerate() {
        match decode(word) {
            Ok(theirs) => all.push(theirs),
            Err(why) => return Ok(Err(format!("rank {rank}: {why}"))),
        }
    }
    Ok(Ok(all))
}

fn encode(mine: &Result<Vec<u8>, String>) -> Vec<u8> {
    let (is_well, text) = match mine {
        Ok(bytes) => (1, &bytes[..]),
        Err(why) => (0, why.as_bytes()),
    };
    let text = &text[..text.len().min(WORD_BYTES - HEAD_BYTES)];
    let mut word = vec![is_well];
    word.extend_from_slice(&(text.len() as u16).to_le_bytes());
    word.extend_from_slice(text);
    word.resize(WORD_BYTES, 0);
    word
}

fn decode(word: &[u8]) -> Result<Vec<u8>, String> {
    let length = usize::from(u16::from_le_bytes([word[1], word[2]]));
    let text = word.get(HEAD_BYTES..HEAD_BYTES + length).ok_or("says something that can't be understood")?;
    match word[0] {
        1 => Ok(text.to_vec()),
        _ => Err(String::from_utf8_lossy(text).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_were_told_and_long_ones_are_cut() {
        assert_eq!(decode(&encode(&Ok(vec![1, 2, 3]))), Ok(vec![1, 2, 3]));
        assert_eq!(decode(&encode(&Err("no device".into()))), Err("no device".into()));
        let long = "x".repeat(5000);
        assert_eq!(decode(&encode(&Err(long))).unwrap_err().len(), WORD_BYTES - HEAD_BYTES);
        assert!(decode(&[1, 0xff, 0xff, 0]).is_err());
    }
}
