//! The headers of IP packets, as far as the emulator reads them, and resets of TCP connections.

use std::net::{IpAddr, SocketAddr};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The ends of a TCP connection or UDP flow, as a packet names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

impl Flow {
    /// The same flow as packets of the other direction name it.
    pub fn reversed(self) -> Self {
        Self { protocol: self.protocol, source: self.destination, destination: self.source }
    }

    pub fn is_udp(&self) -> bool {
        self.protocol == UDP
    }

    pub fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }
}

/// The addresses of an IP packet and where its payload begins.
struct Header {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: usize,
}

fn header(packet: &[u8]) -> Option<Header> {
    match packet.first()? >> 4 {
        4 => {
            let payload = usize::from(packet[0] & 15) * 4;
            let word = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok();
            Some(Header {
                source: IpAddr::from(word(12)?),
                destination: IpAddr::from(word(16)?),
                protocol: packet[9],
                payload,
            })
        }
        6 => {
            let address = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok();
            Some(Header {
                source: IpAddr::from(address(8)?),
                destination: IpAddr::from(address(24)?),
                protocol: packet[6],
                payload: 40,
            })
        }
        _ => None,
    }
}

/// Where a packet goes.
pub fn destination(packet: &[u8]) -> Option<IpAddr> {
    header(packet).map(|header| header.destination)
}

/// The flow of a packet, if it is one of TCP or UDP. Fragments have none.
pub fn flow(packet: &[u8]) -> Option<Flow> {
    let header = header(packet)?;
    if header.protocol != TCP && header.protocol != UDP {
        return None;
    }
    let ports = packet.get(header.payload..header.payload + 4)?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Some(Flow {
        protocol: header.protocol,
        source: SocketAddr::new(header.source, port(0)),
        destination: SocketAddr::new(header.destination, port(2)),
    })
}

/// Whether a packet is the first of a TCP connection.
pub fn begins_connection(packet: &[u8]) -> bool {
    let flags =
        header(packet).filter(|h| h.protocol == TCP).and_then(|h| packet.get(h.payload + 13).copied());
    flags.is_some_and(|flags| flags & (SYN | ACK) == SYN)
}

/// The two resets that end the TCP connection of a packet: one for its sender, one for its receiver.
///
/// The sequence numbers are those that each end expects, so that both accept them.
pub fn resets(packet: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let flow = flow(packet).filter(Flow::is_tcp)?;
    let header = header(packet)?;
    let segment = packet.get(header.payload..header.payload + 20)?;
    let number =
        |at: usize| u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]]);
    let has_ack = segment[13] & ACK != 0;
    let to_sender = reset(flow.reversed(), if has_ack { number(8) } else { 0 }, number(4).wrapping_add(1));
    let to_receiver = reset(flow, number(4), number(8));
    Some((to_sender, to_receiver))
}

fn reset(flow: Flow, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20);
    segment.extend(flow.source.port().to_be_bytes());
    segment.extend(flow.destination.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    segment.extend([5 << 4, RST | ACK, 0, 0, 0, 0, 0, 0]);
    let mut pseudo_header = Vec::new();
    let mut packet = Vec::with_capacity(60);
    match (flow.source.ip(), flow.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            pseudo_header.extend(&packet[12..20]);
        }
        (source, destination) => {
            packet.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
            for address in [source, destination] {
                let IpAddr::V6(address) = address else { unreachable!("both ends have one family") };
                packet.extend(address.octets());
            }
            pseudo_header.extend(&packet[8..40]);
        }
    }
    pseudo_header.extend([0, TCP, 0, 20]);
    pseudo_header.extend(&segment);
    segment[16..18].copy_from_slice(&checksum(&pseudo_header).to_be_bytes());
    packet.extend(segment);
    packet
}

/// The checksum of IP and TCP over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
