//! A peer's connection to the master.

use super::limits;
use crate::control::ControlConnection;
use ringfold_fabric::connection::Connection;
use ringfold_proto::hello::Features;
use ringfold_proto::message::{Join, Numbered, ToMaster};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// An authenticated connection of a peer.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub control: ControlConnection<Numbered<ToMaster>>,
    /// The address of the peer.
    pub from: SocketAddr,
    /// What both ends support.
    pub features: Features,
    /// The name of the peer, once it has joined.
    pub name: Option<String>,
}

impl PeerConnection {
    pub fn new(connection: Connection, from: SocketAddr, features: Features) -> Self {
        Self { control: ControlConnection::new(connection), from, features, name: None }
    }

    /// Hands over what has arrived, and how many bytes of memory each message takes, as much as one turn takes. Returns whether
    /// there is more that the poller will not report.
    pub fn receive(&mut self, mut each: impl FnMut(Numbered<ToMaster>, usize)) -> io::Result<bool> {
        let connection = &mut self.control.connection;
        let filled = if connection.has_input() { Ok(false) } else { connection.fill() };
        for _ in 0..limits::MESSAGES_PER_TURN {
            match self.control.next()? {
                Some(mut message) => {
                    if let Some(join) = message.message.join_mut() {
                        specify(join, self.from.ip());
                        self.name = Some(join.name.clone());
                    }
                    let bytes = self.control.message_bytes();
                    if let Some(resume) = message.message.resume_mut() {
                        resume.held_bytes = bytes;
                    }
                    each(message, bytes);
                }
                None => return filled.map(|_| false),
            }
        }
        Ok(self.control.connection.has_input())
    }
}

/// Replaces unspecified addresses of a peer, which listens on all its addresses, by the one that it is seen at. The codec has
/// limited how many there are.
fn specify(join: &mut Join, seen: IpAddr) {
    let mut specified = Vec::with_capacity(join.addresses.len());
    for mut address in join.addresses.drain(..) {
        if address.ip().to_canonical().is_unspecified() {
            address = SocketAddr::new(seen.to_canonical(), address.port());
        }
        if !specified.contains(&address) {
            specified.push(address);
        }
    }
    join.addresses = specified;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_proto::id::GroupId;

    fn specified(addresses: &[&str], seen: &str) -> Vec<String> {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let mut join = Join {
            group: GroupId(0),
            name: String::new(),
            host: 0,
            site: 0,
            cores: Default::default(),
            addresses,
            relays: false,
        };
        specify(&mut join, seen.parse().unwrap());
        join.addresses.iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn unspecified_addresses_become_the_one_that_was_seen() {
        let all = ["0.0.0.0:5", "[::]:5", "10.0.0.1:5", "[::]:6"];
        assert_eq!(specified(&all, "192.0.2.7"), ["192.0.2.7:5", "10.0.0.1:5", "192.0.2.7:6"]);
        assert_eq!(specified(&["0.0.0.0:5"], "::ffff:192.0.2.7"), ["192.0.2.7:5"]);
        assert_eq!(specified(&["[::ffff:0.0.0.0]:5"], "2001:db8::1"), ["[2001:db8::1]:5"]);
        assert_eq!(specified(&[], "2001:db8::1"), [""; 0]);
    }
}
