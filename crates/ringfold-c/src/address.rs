//! Conversion of addresses from and to C.

use crate::types::{InetAddress, SocketAddress};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use ringfold_bindings::result::CallError;

const IPV4: i32 = 0;
const IPV6: i32 = 1;

impl SocketAddress {
    /// The address; an error for an unknown protocol.
    pub(crate) fn to_rust(self) -> Result<SocketAddr, CallError> {
        let ip = match self.inet.protocol {
            IPV4 => IpAddr::V4(Ipv4Addr::from(self.inet.ipv4)),
            IPV6 => IpAddr::V6(Ipv6Addr::from(self.inet.ipv6)),
            other => return Err(CallError::invalid_argument(format!("unknown internet protocol {other}"))),
        };
        Ok(SocketAddr::new(ip, self.port))
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        let (protocol, ipv4, ipv6) = match address.ip() {
            IpAddr::V4(ip) => (IPV4, ip.octets(), [0; 16]),
            IpAddr::V6(ip) => (IPV6, [0; 4], ip.octets()),
        };
        Self { inet: InetAddress { protocol, ipv4, ipv6 }, port: address.port() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["127.0.0.1:48148", "[::1]:48148", "[2001:db8::7]:1", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddress::from(address).to_rust(), Ok(address));
        }
    }

    #[test]
    fn an_unknown_protocol_is_rejected() {
        let mut address = SocketAddress::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        address.inet.protocol = 2;
        assert!(address.to_rust().is_err());
    }
}
