//! The transports of connections.

use core::fmt;
use core::ops::BitOr;

/// How bytes get to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// CUDA device memory that the other process has opened.
    CudaIpc,
    /// InfiniBand adapter 0 to 7; unsupported.
    Ib(u8),
    /// TCP.
    Ethernet,
    /// Host memory that the other process has mapped.
    SharedMemory,
}

/// A set of transports, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportFlags(u32);

impl Transport {
    /// The transport's bit: 1 CUDA IPC, 2 Ethernet, 4 shared memory, `8 << i` adapter `i`.
    pub fn bit(self) -> u32 {
        match self {
            Self::CudaIpc => 1,
            Self::Ethernet => 2,
            Self::SharedMemory => 4,
            Self::Ib(adapter) => 8 << adapter.min(7),
        }
    }

    /// The transport of a bit.
    pub fn from_bit(bit: u32) -> Option<Self> {
        match bit {
            1 => Some(Self::CudaIpc),
            2 => Some(Self::Ethernet),
            4 => Some(Self::SharedMemory),
            bit if bit.is_power_of_two() && bit <= 8 << 7 => Some(Self::Ib(bit.trailing_zeros() as u8 - 3)),
            _ => None,
        }
    }
}

impl TransportFlags {
    /// All transports.
    pub const ALL: Self = Self((8 << 8) - 1);

    /// The transports of these bits; none if a bit is unknown.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether the set contains a transport.
    pub fn has(self, transport: Transport) -> bool {
        self.0 & transport.bit() != 0
    }
}

impl From<Transport> for TransportFlags {
    fn from(transport: Transport) -> Self {
        Self(transport.bit())
    }
}

impl BitOr for TransportFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CudaIpc => out.write_str("CUDA IPC"),
            Self::Ib(adapter) => write!(out, "InfiniBand (IB{adapter})"),
            Self::Ethernet => out.write_str("Ethernet"),
            Self::SharedMemory => out.write_str("shared memory"),
        }
    }
}

impl fmt::Debug for TransportFlags {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transports = (0..11).filter_map(|bit| Transport::from_bit(self.0 & 1 << bit));
        out.debug_set().entries(transports).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_its_own_bit() {
        let all: Vec<_> = (0..32).filter_map(|bit| Transport::from_bit(1 << bit)).collect();
        assert_eq!(all.len(), 11);
        for transport in &all {
            assert_eq!(Transport::from_bit(transport.bit()), Some(*transport));
            assert!(TransportFlags::ALL.has(*transport));
        }
        assert_eq!((Transport::from_bit(3), Transport::from_bit(0)), (None, None));
        assert_eq!(TransportFlags::from_bits(1 << 11), None);
        let two = TransportFlags::from(Transport::CudaIpc) | Transport::Ib(7).into();
        assert_eq!(TransportFlags::from_bits(two.bits()), Some(two));
        assert!(two.has(Transport::Ib(7)) && !two.has(Transport::Ib(6)));
    }
}
