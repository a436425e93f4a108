//! What each rank tells all others when a window is opened.

use crate::limits::WINDOW_ABOUT_BYTES_MAX;
use ringfold_fabric::segment::Ticket;
use ringfold_fabric::shared_memory::FileTicket;

/// What a rank lays open, and how those of its host reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    /// How many windows this rank has opened before.
    pub(super) number: u32,
    /// Whether this rank can take part at all.
    pub(super) is_able: bool,
    pub(super) bytes: u64,
    /// Where the memory can be mapped from.
    pub(super) file: Option<FileTicket>,
    /// Where it hears signals.
    pub(super) bells: Option<Ticket>,
    /// What the user says about the memory.
    pub(super) about: Vec<u8>,
}

impl Offer {
    /// The size of an offer on its way: the same for all.
    pub(super) const BYTES: usize = ABOUT_AT + WINDOW_ABOUT_BYTES_MAX;

    /// As it travels.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&[
            VERSION,
            self.is_able.into(),
            self.file.is_some().into(),
            self.bells.is_some().into(),
        ]);
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.about.len() as u32).to_le_bytes());
        if let Some(file) = &self.file {
            bytes[FILE_AT..BELLS_AT].copy_from_slice(&file.encode());
        }
        if let Some(bells) = &self.bells {
            bytes[BELLS_AT..ABOUT_AT].copy_from_slice(&bells.encode());
        }
        bytes[ABOUT_AT..ABOUT_AT + self.about.len()].copy_from_slice(&self.about);
        bytes
    }

    /// The offer that these bytes are; `None` if they are none.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let [version, is_able, has_file, has_bells] = [bytes[4], bytes[5], bytes[6], bytes[7]];
        let about = ABOUT_AT..ABOUT_AT.checked_add(number(16) as usize)?;
        if version != VERSION {
            return None;
        }
        let file = FileTicket::decode(bytes[FILE_AT..BELLS_AT].try_into().ok()?);
        // A ticket of another kind is one that can't be used.
        let bells = Ticket::decode(bytes[BELLS_AT..ABOUT_AT].try_into().ok()?);
        Some(Self {
            number: number(0),
            is_able: is_able != 0,
            bytes: u64::from(number(8)) | u64::from(number(12)) << 32,
            file: (has_file != 0).then_some(file),
            bells: bells.filter(|_| has_bells != 0),
            about: bytes.get(about)?.to_vec(),
        })
    }
}

const VERSION: u8 = 1;

const FILE_AT: usize = 24;

const BELLS_AT: usize = FILE_AT + FileTicket::BYTES;

const ABOUT_AT: usize = BELLS_AT + Ticket::BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_their_way() {
        let file = FileTicket { pid: 1, fd: 2, device: 3, inode: 4, offset: 5, bytes: 6 };
        let bells = Ticket { pid: 7, fd: 8, bytes: 9, nonce: [10; 16] };
        let full = Offer {
            number: 11,
            is_able: true,
            bytes: 12 << 40,
            file: Some(file),
            bells: Some(bells),
            about: vec![13; WINDOW_ABOUT_BYTES_MAX],
        };
        let bare = Offer { is_able: false, file: None, bells: None, about: vec![], ..full.clone() };
        for offer in [full.clone(), bare] {
            assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        }
        let mut other = full.encode();
        other[4] = 2;
        assert_eq!(Offer::decode(&other), None);
        let mut long = full.encode();
        long[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Offer::decode(&long), None);
    }
}
