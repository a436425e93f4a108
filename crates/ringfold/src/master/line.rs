//! A connection that has proven itself.

use super::limits;
use ringfold_fabric::connection::{Connection, Intake};
use ringfold_proto::frame::{ControlDecoder, FrameError, encode_control};
use ringfold_proto::message::{Join, Numbered, ToMaster, ToPeer};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// A peer's connection.
#[derive(Debug)]
pub(super) struct Line {
    pub connection: Connection,
    decoder: ControlDecoder<Numbered<ToMaster>>,
    /// The other end.
    pub from: SocketAddr,
}

/// Why nothing more is expected from a connection.
#[derive(Debug)]
pub(super) enum Break {
    /// It ended.
    Ended(io::Error),
    /// What it carries can't be understood.
    Garbled(FrameError),
}

impl Line {
    pub fn new(mut connection: Connection, from: SocketAddr) -> Self {
        connection.set_intake(Intake::Messages);
        Self { connection, decoder: ControlDecoder::default(), from }
    }

    /// Takes what arrived, as much of it as one turn takes. Says whether there is more to be taken that the
    /// poller will not tell of.
    pub fn hear(&mut self, mut each: impl FnMut(Numbered<ToMaster>)) -> Result<bool, Break> {
        let filled = if self.connection.has_input() { Ok(false) } else { self.connection.fill() };
        for _ in 0..limits::MESSAGES_PER_TURN {
            let decoder = &mut self.decoder;
            match self.connection.take(|input| decoder.next_message(input)) {
                Ok(Some(mut message)) => {
                    self.correct(&mut message.message);
                    each(message);
                }
                Ok(None) => return filled.map(|_| false).map_err(Break::Ended),
                Err(error) => return Err(Break::Garbled(error)),
            }
        }
        Ok(self.connection.has_input())
    }

    /// Queues a message.
    pub fn say(&mut self, message: &Numbered<ToPeer>) -> Result<(), FrameError> {
        encode_control(message).map(|frame| self.connection.send(&frame))
    }

    /// Bytes of a message that is not complete.
    pub fn held_bytes(&self) -> usize {
        self.decoder.held_bytes()
    }

    /// A peer that listens on all its addresses does not know which of them others see. We do.
    fn correct(&self, message: &mut ToMaster) {
        match message {
            ToMaster::Join(join) => specify(join, self.from.ip()),
            ToMaster::Resume(resume) => specify(&mut resume.join, self.from.ip()),
            _ => {}
        }
    }
}

/// Puts an address in place of unspecified ones. The codec has bounded how many there are.
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
        let mut join = Join { group: GroupId(0), name: String::new(), host: 0, site: 0, addresses };
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
