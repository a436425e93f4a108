//! The encoded offer of a connection.

use super::transport::Transport;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use zerocopy::little_endian::{I32, U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the peer needs to connect. It contains a secret key: anyone who knows it can connect.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OfferRecord {
    pub(super) transport: Transport,
    /// The device of this rank's memory, or -1.
    pub(super) device: i32,
    pub(super) host: u64,
    pub(super) process: u128,
    pub(super) port: u128,
    /// The offer's id.
    pub(super) id: u64,
    /// The key by which the dialing peer authenticates.
    pub(super) key: [u8; 32],
    /// The port's listening addresses.
    pub(super) addresses: Vec<SocketAddr>,
}

const MAGIC: [u8; 4] = *b"RFo1";

/// The most addresses of a port.
pub(super) const ADDRESSES_MAX: usize = 16;

/// The layout of an offer. The addresses follow.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct OfferHeader {
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

/// The layout of an address. IPv4 addresses are mapped to IPv6.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AddressRecord {
    ip: [u8; 16],
    port: U16,
    family: U16,
}

impl OfferRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        let header = OfferHeader {
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
        let mut bytes = header.as_bytes().to_vec();
        for address in addresses {
            bytes.extend(AddressRecord::from(*address).as_bytes());
        }
        bytes
    }

    /// Decodes an offer; none if the bytes are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = OfferHeader::read_from_prefix(bytes).ok()?;
        let addresses = <[AddressRecord]>::ref_from_bytes(rest).ok()?;
        let count = header.addresses.get() as usize;
        if header.magic != MAGIC || count > ADDRESSES_MAX || count != addresses.len() {
            return None;
        }
        Some(Self {
            transport: Transport::from_bit(header.transport.get())?,
            device: header.device.get(),
            host: header.host.get(),
            process: header.process.get(),
            port: header.port.get(),
            id: header.id.get(),
            key: header.key,
            addresses: addresses.iter().map(AddressRecord::decode).collect::<Option<_>>()?,
        })
    }
}

impl From<SocketAddr> for AddressRecord {
    fn from(address: SocketAddr) -> Self {
        let (family, ip) = match address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        Self { ip, port: address.port().into(), family: U16::new(family) }
    }
}

impl AddressRecord {
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

// Without the key.
debug_as!(OfferRecord, self => "offer {:016x} over {} at {:?}", self.id, self.transport, self.addresses);

#[cfg(test)]
pub(crate) mod tests {
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

    /// An offer with and one without addresses.
    pub(crate) fn examples() -> [OfferRecord; 2] {
        [offer(), OfferRecord { addresses: vec![], device: 7, ..offer() }]
    }

    #[test]
    fn offers_round_trip_and_do_not_print_their_key() {
        for offer in examples() {
            assert_eq!(OfferRecord::decode(&offer.encode()), Some(offer.clone()));
            assert!(!format!("{offer:?}").contains("5, 5"));
        }
    }

    #[test]
    fn invalid_offers_are_rejected() {
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
