//! What the two sides of a connection tell each other before they connect.

use super::transport::Transport;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use zerocopy::little_endian::{I32, U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the other side has to know to connect, in bytes that get there somehow. It has a key in it: whoever knows it
/// can connect.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct OfferRecord {
    pub(super) transport: Transport,
    /// The device that this side's memory is on, or -1.
    pub(super) device: i32,
    pub(super) host: u64,
    pub(super) process: u128,
    pub(super) port: u128,
    /// The offer's own number.
    pub(super) id: u64,
    /// What the one who dials has to prove that it knows.
    pub(super) key: [u8; 32],
    /// Where the port listens.
    pub(super) addresses: Vec<SocketAddr>,
}

const MAGIC: [u8; 4] = *b"RFo1";

/// Addresses of one port, at most.
pub(super) const ADDRESSES_MAX: usize = 16;

/// The layout of an offer. Its addresses follow.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    transport: U32,
    device: I32,
    addresses: U32,
    host: U64,
    process: U128,
    port: U128,
    id: U64,
    key: [u8; 32],
}

/// The layout of an address. The address of an IPv4 host is mapped.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Address {
    ip: [u8; 16],
    port: U16,
    family: U16,
}

impl OfferRecord {
    /// As it travels.
    pub(super) fn encode(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        let head = Head {
            magic: MAGIC,
            transport: self.transport.bit().into(),
            device: self.device.into(),
            addresses: (addresses.len() as u32).into(),
            host: self.host.into(),
            process: self.process.into(),
            port: self.port.into(),
            id: self.id.into(),
            key: self.key,
        };
        let mut bytes = head.as_bytes().to_vec();
        for address in addresses {
            bytes.extend(Address::from(*address).as_bytes());
        }
        bytes
    }

    /// The offer that these bytes are, if they are one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        let addresses = <[Address]>::ref_from_bytes(rest).ok()?;
        let count = head.addresses.get() as usize;
        if head.magic != MAGIC || count > ADDRESSES_MAX || count != addresses.len() {
            return None;
        }
        Some(Self {
            transport: Transport::from_bit(head.transport.get())?,
            device: head.device.get(),
            host: head.host.get(),
            process: head.process.get(),
            port: head.port.get(),
            id: head.id.get(),
            key: head.key,
            addresses: addresses.iter().map(Address::decode).collect::<Option<_>>()?,
        })
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let (family, ip) = match address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        Self { ip, port: address.port().into(), family: U16::new(family) }
    }
}

impl Address {
    fn decode(&self) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from(self.ip);
        let ip = match self.family.get() {
            4 => IpAddr::V4(ip.to_ipv4_mapped()?),
            6 => IpAddr::V6(ip),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.port.get()))
    }
}

impl core::fmt::Debug for OfferRecord {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the key.
        write!(out, "offer {:016x} over {} at {:?}", self.id, self.transport, self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> OfferRecord {
        OfferRecord {
            transport: Transport::Ib(3),
            device: -1,
            host: 1,
            process: 2,
            port: 3,
            id: 4,
            key: [5; 32],
            addresses: vec!["127.0.0.1:80".parse().unwrap(), "[2001:db8::1]:65535".parse().unwrap()],
        }
    }

    #[test]
    fn offers_survive_their_way_and_keep_their_key_to_themselves() {
        let none = OfferRecord { addresses: vec![], device: 7, ..offer() };
        for offer in [offer(), none] {
            assert_eq!(OfferRecord::decode(&offer.encode()), Some(offer.clone()));
            assert!(!format!("{offer:?}").contains("5, 5"));
        }
    }

    #[test]
    fn what_is_no_offer_is_refused() {
        let bytes = offer().encode();
        for length in 0..bytes.len() {
            assert_eq!(OfferRecord::decode(&bytes[..length]), None, "{length}");
        }
        assert_eq!(OfferRecord::decode(&[bytes.clone(), vec![0]].concat()), None);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            if let Some(read) = OfferRecord::decode(&other) {
                assert_eq!(read.encode(), other, "bit {bit}");
            }
        }
    }
}
