//! What the two sides of a connection tell each other before they connect.

use super::bytes::Reader;
use super::transport::Transport;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

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

const MAGIC: &[u8; 4] = b"RFo1";

/// Addresses of one port, at most.
pub(super) const ADDRESSES_MAX: usize = 16;

impl OfferRecord {
    /// As it travels.
    pub(super) fn encode(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.transport.bit().to_le_bytes());
        bytes.extend(self.device.to_le_bytes());
        bytes.extend((addresses.len() as u32).to_le_bytes());
        bytes.extend(self.host.to_le_bytes());
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.key);
        for address in addresses {
            let (family, octets) = match address.ip() {
                IpAddr::V4(ip) => (4_u16, ip.to_ipv6_mapped().octets()),
                IpAddr::V6(ip) => (6_u16, ip.octets()),
            };
            bytes.extend(octets);
            bytes.extend(address.port().to_le_bytes());
            bytes.extend(family.to_le_bytes());
        }
        bytes
    }

    /// The offer that these bytes are, if they are one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.take::<4>()? != *MAGIC {
            return None;
        }
        let transport = Transport::from_bit(reader.half()?)?;
        let device = i32::from_le_bytes(reader.take()?);
        let count = reader.half()? as usize;
        let (host, process, port) = (reader.word()?, reader.id()?, reader.id()?);
        let (id, key) = (reader.word()?, reader.take()?);
        if count > ADDRESSES_MAX {
            return None;
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let ip = Ipv6Addr::from(reader.take::<16>()?);
            let number = u16::from_le_bytes(reader.take()?);
            let ip = match u16::from_le_bytes(reader.take()?) {
                4 => IpAddr::V4(ip.to_ipv4_mapped()?),
                6 => IpAddr::V6(ip),
                _ => return None,
            };
            addresses.push(SocketAddr::new(ip, number));
        }
        reader.end()?;
        Some(Self { transport, device, host, process, port, id, key, addresses })
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
