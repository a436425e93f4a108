//! How two sides reach each other.

use core::fmt;
use core::ops::BitOr;

/// One way for bytes to get to the other side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Memory of a CUDA device that the other process has opened.
    CudaIpc,
    /// InfiniBand, by the number of the adapter, 0 to 7.
    Ib(u8),
    /// TCP.
    Ethernet,
    /// Memory of this host that the other process has mapped.
    SharedMemory,
}

/// Some ways, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportFlags(u32);

impl Transport {
    /// Its bit: 1 CUDA IPC, 2 Ethernet, 4 shared memory, `8 << i` the adapter `i`.
    pub fn bit(self) -> u32 {
        match self {
            Self::CudaIpc => 1,
            Self::Ethernet => 2,
            Self::SharedMemory => 4,
            Self::Ib(adapter) => 8 << adapter.min(7),
        }
    }

    /// The way that has this bit.
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
    /// All that there are.
    pub const ALL: Self = Self((8 << 8) - 1);

    /// The ways that these bits stand for; none if a bit stands for nothing.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    /// As bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether a way is among them.
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
        let ways = (0..11).filter_map(|place| Transport::from_bit(self.0 & 1 << place));
        out.debug_set().entries(ways).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_bit_of_its_own() {
        let ways: Vec<_> = (0..32).filter_map(|place| Transport::from_bit(1 << place)).collect();
        assert_eq!(ways.len(), 11);
        for way in &ways {
            assert_eq!(Transport::from_bit(way.bit()), Some(*way));
            assert!(TransportFlags::ALL.has(*way));
        }
        assert_eq!((Transport::from_bit(3), Transport::from_bit(0)), (None, None));
        assert_eq!(TransportFlags::from_bits(1 << 11), None);
        let two = TransportFlags::from(Transport::CudaIpc) | Transport::Ib(7).into();
        assert_eq!(TransportFlags::from_bits(two.bits()), Some(two));
        assert!(two.has(Transport::Ib(7)) && !two.has(Transport::Ib(6)));
    }
}
