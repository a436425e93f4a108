//! A peer without data: its links are up at once, and its operations are done when they begin.

use super::swarm::Traffic;
use anyhow::{Context, Result, bail};
use ringfold_fabric::connection::{Connection, Intake};
use ringfold_fabric::dialer::{Credentials, DialTiming, Dialed, Dialer};
use ringfold_fabric::poller::{Poller, Token};
use ringfold_proto::frame::{ControlDecoder, encode_control};
use ringfold_proto::handshake::{DialTarget, Identity, Secret};
use ringfold_proto::id::{ConnId, GroupId, PeerId, RunId};
use ringfold_proto::message::{Join, Numbered, ToMaster, ToPeer};
use ringfold_proto::peer::{Completion, Failure, Peer, PeerAction, PeerConfig};
use ringfold_proto::time::Time;
use ringfold_proto::timing::Timing;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

/// What happened to a peer.
pub(super) enum PeerEvent {
    /// It waits to be accepted.
    Registered,
    /// An epoch with so many members is open.
    Opened(usize),
    /// Its call has ended.
    Completed(Result<Completion, Failure>),
}

pub(super) struct ScriptedPeer {
    pub(super) machine: Peer,
    /// Whether its next operations are never done.
    pub(super) is_slow: bool,
    uplink: Uplink,
    conn: ConnId,
}

enum Uplink {
    Down,
    Dialing(Box<Dialer>),
    /// With the bytes of an incomplete message.
    Up(Box<Connection>, Vec<u8>),
}

impl ScriptedPeer {
    pub(super) fn new(peer: PeerId, number: u64) -> Self {
        let join = Join {
            group: GroupId(0),
            name: format!("peer-{number}"),
            host: number,
            site: 0,
            cores: Default::default(),
            // Nobody dials it.
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 9))],
            relays: false,
        };
        let machine = Peer::new(PeerConfig { peer, join, replica: None, timing: Timing::default() });
        Self { machine, is_slow: false, uplink: Uplink::Down, conn: ConnId(0) }
    }

    /// The token of its connection, once there is one.
    pub(super) fn token(&self) -> Option<Token> {
        match &self.uplink {
            Uplink::Up(connection, _) => Some(connection.token()),
            _ => None,
        }
    }

    /// Whether a token belongs to an attempt to connect.
    pub(super) fn dials_with(&self, token: Token) -> bool {
        matches!(&self.uplink, Uplink::Dialing(dialer) if dialer.owns(token))
    }

    /// Advances a dial. Returns whether the connection was made.
    pub(super) fn advance_dial(&mut self, now: Time) -> Result<bool> {
        let Uplink::Dialing(dialer) = &mut self.uplink else { return Ok(false) };
        let Some(Dialed { mut connection, .. }) = dialer.advance(now)? else { return Ok(false) };
        connection.set_intake(Intake::Messages);
        self.conn = ConnId(self.conn.0 + 1);
        self.uplink = Uplink::Up(Box::new(connection), Vec::new());
        self.machine.handle_connected(now, self.conn);
        Ok(true)
    }

    /// Reads what has arrived.
    pub(super) fn receive(
        &mut self,
        now: Time,
        decoder: &mut SharedDecoder,
        traffic: &mut Traffic,
        mut each: impl FnMut(PeerEvent),
    ) -> Result<()> {
        loop {
            let Uplink::Up(connection, partial) = &mut self.uplink else { return Ok(()) };
            match connection.fill() {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("the master closed a connection"),
            }
            connection.take(|input| partial.extend_from_slice(std::mem::take(input)));
            let is_drained = connection.is_drained();
            let mut rest = &partial[..];
            while let Some(frame) = take_frame(&mut rest) {
                let message = decoder.decode(frame)?;
                if !matches!(message.message, ToPeer::Heartbeat) {
                    traffic.from_master += frame.len() as u64;
                }
                if matches!(message.message, ToPeer::Registered { .. }) {
                    each(PeerEvent::Registered);
                }
                self.machine.handle_message(now, self.conn, message);
            }
            let taken = partial.len() - rest.len();
            partial.drain(..taken);
            if is_drained {
                return Ok(());
            }
        }
    }

    /// Does what the machine asks for.
    pub(super) fn act(
        &mut self,
        now: Time,
        master: SocketAddr,
        poller: &Arc<Poller>,
        dead: &BTreeSet<PeerId>,
        traffic: &mut Traffic,
        mut each: impl FnMut(PeerEvent),
    ) -> Result<()> {
        while let Some(action) = self.machine.poll_action() {
            match action {
                PeerAction::DialMaster => {
                    let credentials = Credentials {
                        identity: Identity::new(self.machine.id(), RunId(0)),
                        target: DialTarget::master(),
                        secret: Secret::token(""),
                    };
                    let timing = DialTiming::of(poller);
                    self.uplink =
                        Uplink::Dialing(Box::new(Dialer::new(now, [master], credentials, timing, poller)));
                }
                PeerAction::Send { conn, message } if conn == self.conn => {
                    let Uplink::Up(connection, _) = &mut self.uplink else { continue };
                    let bytes = encode_control(&*message)?;
                    if !matches!(message.message, ToMaster::Heartbeat { .. }) {
                        traffic.to_master += bytes.len() as u64;
                    }
                    connection.send(&bytes);
                }
                PeerAction::Link { member, .. } if !dead.contains(&member.peer) => {
                    self.machine.handle_link_up(member.peer);
                }
                PeerAction::Ping(peer) => self.machine.handle_heard(peer),
                PeerAction::OpenEpoch(description) => each(PeerEvent::Opened(description.members.len())),
                PeerAction::StartOp { op, .. } if !self.is_slow => self.machine.handle_op_done(op, None),
                PeerAction::SuspendOp(op) => self.machine.handle_op_suspended(op, None),
                PeerAction::CommitOp(op) | PeerAction::AbortOp(op) => self.machine.handle_op_released(op),
                PeerAction::Complete { result, .. } => each(PeerEvent::Completed(result)),
                PeerAction::Close { .. } => bail!("a peer was removed from the run"),
                _ => {}
            }
        }
        if let Uplink::Up(connection, _) = &mut self.uplink {
            connection.flush(&mut Vec::new()).context("cannot send to the master")?;
        }
        Ok(())
    }
}

/// Long messages that all peers get, such as descriptions of epochs, are decoded once: peers on other machines would not
/// share a processor for it.
#[derive(Default)]
pub(super) struct SharedDecoder {
    /// The last long message.
    bytes: Vec<u8>,
    message: Option<ToPeer>,
}

/// The shortest message that is compared with the last one.
const LONG_BYTES: usize = 1024;

impl SharedDecoder {
    fn decode(&mut self, frame: &[u8]) -> Result<Numbered<ToPeer>> {
        let mut bytes = &frame[PREFIX_BYTES..];
        let (number, acknowledged) = (take_varint(&mut bytes), take_varint(&mut bytes));
        if let (Some(message), true) = (&self.message, bytes == self.bytes) {
            return Ok(Numbered { number, acknowledged, message: message.clone() });
        }
        let decoded = ControlDecoder::<Numbered<ToPeer>>::default().next_message(&mut &frame[..])?;
        let decoded = decoded.context("incomplete message of the master")?;
        if bytes.len() >= LONG_BYTES {
            (self.bytes, self.message) = (bytes.to_vec(), Some(decoded.message.clone()));
        }
        Ok(decoded)
    }
}

/// Bytes of the length before a message.
const PREFIX_BYTES: usize = 4;

/// Takes the next complete frame off the front.
fn take_frame<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let (frame, rest) = bytes.split_at_checked(PREFIX_BYTES + length)?;
    *bytes = rest;
    Some(frame)
}

/// Takes a number off the front, seven bits in each byte.
fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
