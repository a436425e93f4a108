//! The record that each rank sends to all others when a window is opened.

use crate::limits::WINDOW_ABOUT_BYTES_MAX;
use ringfold_fabric::segment::Ticket;
use ringfold_fabric::shared_memory::FileTicket;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The memory that a rank exposes, and how ranks on its host map it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WindowOffer {
    /// The number of windows that this rank has opened before.
    pub(crate) number: u32,
    /// Whether this rank can open the window.
    pub(crate) is_able: bool,
    pub(crate) bytes: u64,
    /// The file of the memory, if it can be mapped.
    pub(crate) file: Option<FileTicket>,
    pub(crate) signals: Option<Ticket>,
    pub(crate) about: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Layout {
    number: u32,
    version: u8,
    is_able: u8,
    has_file: u8,
    has_bells: u8,
    bytes: u64,
    about_bytes: u32,
    reserved: u32,
    file: [u8; FileTicket::BYTES],
    signals: [u8; Ticket::BYTES],
    about: [u8; WINDOW_ABOUT_BYTES_MAX],
}

impl WindowOffer {
    pub(crate) const BYTES: usize = size_of::<Layout>();

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut about = [0; WINDOW_ABOUT_BYTES_MAX];
        about[..self.about.len()].copy_from_slice(&self.about);
        zerocopy::transmute!(Layout {
            number: self.number,
            version: VERSION,
            is_able: self.is_able.into(),
            has_file: self.file.is_some().into(),
            has_bells: self.signals.is_some().into(),
            bytes: self.bytes,
            about_bytes: self.about.len() as u32,
            reserved: 0,
            file: self.file.map_or([0; FileTicket::BYTES], |file| file.encode()),
            signals: self.signals.map_or([0; Ticket::BYTES], |signals| signals.encode()),
            about,
        })
    }

    /// Decodes an offer; `None` if it is invalid.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let layout: Layout = zerocopy::transmute!(*bytes);
        if layout.version != VERSION {
            return None;
        }
        Some(Self {
            number: layout.number,
            is_able: layout.is_able != 0,
            bytes: layout.bytes,
            file: (layout.has_file != 0).then(|| FileTicket::decode(&layout.file)),
            // A ticket of another version decodes to `None`.
            signals: Ticket::decode(&layout.signals).filter(|_| layout.has_bells != 0),
            about: layout.about.get(..layout.about_bytes as usize)?.to_vec(),
        })
    }
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_decoded_as_they_were_encoded() {
        let file = FileTicket { pid: 1, fd: 2, device: 3, inode: 4, offset: 5, bytes: 6 };
        let signals = Ticket { pid: 7, fd: 8, bytes: 9, nonce: [10; 16] };
        let full = WindowOffer {
            number: 11,
            is_able: true,
            bytes: 12 << 40,
            file: Some(file),
            signals: Some(signals),
            about: vec![13; WINDOW_ABOUT_BYTES_MAX],
        };
        let bare = WindowOffer { is_able: false, file: None, signals: None, about: vec![], ..full.clone() };
        for offer in [full.clone(), bare] {
            assert_eq!(WindowOffer::decode(&offer.encode()), Some(offer));
        }
        let mut other = full.encode();
        other[4] = 2;
        assert_eq!(WindowOffer::decode(&other), None);
        let mut long = full.encode();
        long[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(WindowOffer::decode(&long), None);
    }
}
