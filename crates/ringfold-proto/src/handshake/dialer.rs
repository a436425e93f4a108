//! The dialling end of a handshake.

use super::{Binding, BlockBuffer, Established, HandshakeError, Identity, Role, Secret, Transcript};
use crate::hello::{
    ConnectionRejection, Hello, InvalidBlock, Nonce, Proof, Purpose, Status, Verdict, Welcome,
};
use crate::id::{EpochId, PeerId, RunId};
use hmac::Mac;

/// What a dialler connects to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DialTarget {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The epoch whose key is the secret; zeros on a control connection.
    pub epoch: EpochId,
    /// The peer that must answer, if known. Another process may have reused its address.
    pub peer: Option<PeerId>,
    /// The role that the acceptor's certificate must have, if certificates are used.
    pub role: Role,
}

impl DialTarget {
    /// A control connection to the master.
    pub fn master() -> Self {
        Self { purpose: Purpose::Control, epoch: EpochId::default(), peer: None, role: Role::Master }
    }

    /// A control connection to rank 0 of a group of fixed ranks.
    pub fn rank_0() -> Self {
        Self { role: Role::Peer, ..Self::master() }
    }

    /// A connection from one master to another.
    pub fn other_master() -> Self {
        Self { purpose: Purpose::Masters, ..Self::master() }
    }

    /// A master that is asked for the status of its run.
    pub fn observed() -> Self {
        Self { purpose: Purpose::Observe, ..Self::master() }
    }

    /// A master that gets commands.
    pub fn commanded() -> Self {
        Self { purpose: Purpose::Admin, ..Self::master() }
    }

    /// A leg to a relay, or to a member that relays.
    pub fn relay() -> Self {
        Self { purpose: Purpose::Relay, role: Role::Relay, ..Self::master() }
    }

    /// A connection to another member of an epoch.
    pub fn member(purpose: Purpose, epoch: EpochId, peer: PeerId) -> Self {
        Self { purpose, epoch, peer: Some(peer), role: Role::Peer }
    }

    /// A doctor asks a master.
    pub fn doctor_to_master() -> Self {
        Self { purpose: Purpose::Doctor, ..Self::master() }
    }

    /// A doctor asks another one, or is dialled back.
    pub fn doctor() -> Self {
        Self { role: Role::Observer, ..Self::doctor_to_master() }
    }
}

/// The dialler's half of a handshake.
///
/// The driver may send the first frame right after the proof, without waiting for the verdict. The acceptor is not
/// authenticated before the verdict, so such a frame must hold no secrets.
#[derive(Clone)]
pub struct DialerHandshake {
    identity: Identity,
    target: DialTarget,
    secret: Secret,
    hello: [u8; Hello::BYTES],
    buffer: BlockBuffer,
    output: Vec<u8>,
    binding: Option<Binding>,
    state: State,
}

#[derive(Clone)]
enum State {
    AwaitWelcome,
    AwaitVerdict { transcript: Box<Transcript>, proof: Proof, established: Established },
    Ended(Result<Established, HandshakeError>),
}

impl DialerHandshake {
    /// Starts a handshake; `poll_output` returns the hello. The nonce must be random and new.
    pub fn new(identity: Identity, target: DialTarget, secret: Secret, nonce: Nonce) -> Self {
        let hello = Hello {
            versions: identity.versions,
            purpose: target.purpose,
            has_secret: !secret.is_none(),
            features: identity.features,
            run: identity.run,
            session: identity.peer,
            epoch: target.epoch,
            nonce,
        }
        .encode();
        let (buffer, output) = (BlockBuffer::new(), hello.to_vec());
        Self { identity, target, secret, hello, buffer, output, binding: None, state: State::AwaitWelcome }
    }

    /// Binds the proofs to an encrypted session. Must be called before the welcome is handled.
    pub fn bind(&mut self, binding: Binding) {
        self.binding = Some(binding);
    }

    /// The bytes to send now; may be empty.
    pub fn poll_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Consumes received bytes. Bytes that remain once the connection is established follow the handshake.
    pub fn handle_bytes(&mut self, input: &mut &[u8]) -> Result<Option<Established>, HandshakeError> {
        loop {
            let step = match &self.state {
                State::Ended(result) => return result.map(Some),
                State::AwaitWelcome => match self.buffer.take(input) {
                    Some(bytes) => self.handle_welcome(bytes),
                    None if self.buffer.can_start_with(&Welcome::MAGIC) => return Ok(None),
                    None => Err(HandshakeError::NotRingfold),
                },
                State::AwaitVerdict { transcript, proof, established } => match self.buffer.take(input) {
                    Some(bytes) => self
                        .verify_verdict(&bytes, transcript, proof)
                        .map(|()| State::Ended(Ok(*established))),
                    None => return Ok(None),
                },
            };
            self.state = step.unwrap_or_else(|error| State::Ended(Err(error)));
        }
    }

    /// The connection ended: returns why the handshake failed.
    pub fn handle_end(&mut self) -> HandshakeError {
        let missing = match &self.state {
            State::Ended(Err(error)) => return *error,
            State::Ended(Ok(_)) => "first frame",
            State::AwaitWelcome => "welcome",
            State::AwaitVerdict { .. } => "verdict",
        };
        HandshakeError::Truncated { missing }
    }

    fn handle_welcome(&mut self, bytes: [u8; Welcome::BYTES]) -> Result<State, HandshakeError> {
        let welcome = Welcome::decode(&bytes).map_err(|_: InvalidBlock| HandshakeError::NotRingfold)?;
        let established = self.check_welcome(&welcome)?;
        let transcript = Box::new(Transcript { hello: self.hello, welcome: bytes, binding: self.binding });
        let proof = Proof(transcript.dialler_mac(&self.secret).finalize().into_bytes().into());
        self.output.extend_from_slice(&proof.0);
        Ok(State::AwaitVerdict { transcript, proof, established })
    }

    /// Checks that a welcome matches the hello.
    fn check_welcome(&self, welcome: &Welcome) -> Result<Established, HandshakeError> {
        let Identity { peer: me, run, versions, features } = self.identity;
        if let Some(Err(problem)) = self.binding.map(|binding| binding.check_role(self.target.role)) {
            return Err(HandshakeError::Certificate(problem));
        }
        match welcome.status {
            Status::Ok => Ok(()),
            Status::Version => Err(HandshakeError::Version { ours: versions, theirs: welcome.versions }),
            Status::WrongRun => Err(HandshakeError::WrongRun { ours: run, theirs: welcome.run }),
            Status::SecretMissing => Err(HandshakeError::TokenMissing),
            Status::SecretUnexpected => Err(HandshakeError::TokenUnexpected),
            Status::BadProof => Err(HandshakeError::Misbehaved("it rejected a proof before it was sent")),
            Status::Rejected(why) => Err(HandshakeError::Rejected(why)),
        }?;
        if !versions.contains(welcome.version) || !welcome.versions.contains(welcome.version) {
            return Err(HandshakeError::Misbehaved("it chose an unsupported version"));
        }
        if !features.contains(welcome.features) {
            return Err(HandshakeError::Misbehaved("it chose a feature that was not offered"));
        }
        if run != RunId(0) && welcome.run != RunId(0) && run != welcome.run {
            return Err(HandshakeError::WrongRun { ours: run, theirs: welcome.run });
        }
        if welcome.session == me {
            return Err(HandshakeError::Rejected(ConnectionRejection::Itself));
        }
        // A master has no id.
        if let Some(Binding { peer: owner, .. }) = self.binding
            && welcome.session != PeerId(0)
            && welcome.session != owner
        {
            return Err(HandshakeError::WrongKeys { claimed: welcome.session, owner });
        }
        if let Some(expected) = self.target.peer.filter(|p| *p != welcome.session) {
            return Err(HandshakeError::WrongPeer { expected, found: welcome.session });
        }
        match (self.secret.is_none(), welcome.has_secret) {
            (true, true) => return Err(HandshakeError::TokenMissing),
            (false, false) => return Err(HandshakeError::TokenUnexpected),
            _ => {}
        }
        Ok(Established {
            peer: welcome.session,
            purpose: self.target.purpose,
            epoch: self.target.epoch,
            run: if welcome.run == RunId(0) { run } else { welcome.run },
            version: welcome.version,
            features: welcome.features,
        })
    }

    /// Checks that the verdict accepts, and that the acceptor knows the secret.
    fn verify_verdict(
        &self,
        bytes: &[u8; Verdict::BYTES],
        transcript: &Transcript,
        proof: &Proof,
    ) -> Result<(), HandshakeError> {
        let verdict = Verdict::decode(bytes)
            .map_err(|_: InvalidBlock| HandshakeError::Misbehaved("invalid verdict"))?;
        match verdict.status {
            Status::Ok => {}
            Status::BadProof => return Err(HandshakeError::bad_proof(self.target.purpose)),
            Status::Rejected(why) => return Err(HandshakeError::Rejected(why)),
            _ => return Err(HandshakeError::Misbehaved("invalid status in the verdict")),
        }
        let covered = bytes.first_chunk().expect("a verdict is longer than the part that its proof covers");
        let verified = transcript.acceptor_mac(&self.secret, proof, covered).verify_slice(&verdict.proof);
        verified.map_err(|_| HandshakeError::Impostor)
    }
}
