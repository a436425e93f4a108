//! The end that opens a connection.

use super::{Established, HandshakeError, Identity, Intake, Secret, Transcript};
use crate::hello::{BadBlock, Hello, Nonce, Proof, Purpose, Refusal, Status, Verdict, Welcome};
use crate::id::{EpochId, PeerId, RunId};
use hmac::Mac;

/// Whom a dialler wants to reach, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The epoch whose key is the secret; zeros on a control connection.
    pub epoch: EpochId,
    /// Who must answer, where it is known: addresses are reused by others.
    pub peer: Option<PeerId>,
}

impl Target {
    /// A control connection to the master.
    pub fn master() -> Self {
        Self { purpose: Purpose::Control, epoch: EpochId::default(), peer: None }
    }

    /// A connection to another member of an epoch.
    pub fn member(purpose: Purpose, epoch: EpochId, peer: PeerId) -> Self {
        Self { purpose, epoch, peer: Some(peer) }
    }
}

/// The dialler's side of a handshake.
///
/// Its first frame may be sent right after the proof, without waiting for the verdict: the acceptor
/// leaves it alone. But until the verdict is here nobody knows who reads it, so this is for frames that
/// hold no secrets.
#[derive(Clone)]
pub struct Dialler {
    identity: Identity,
    target: Target,
    secret: Secret,
    hello: [u8; Hello::BYTES],
    intake: Intake,
    output: Vec<u8>,
    state: State,
}

#[derive(Clone)]
enum State {
    AwaitWelcome,
    AwaitVerdict { transcript: Box<Transcript>, proof: Proof, established: Established },
    Ended(Result<Established, HandshakeError>),
}

impl Dialler {
    /// Begins a handshake; the hello is ready to be sent. The nonce must be random and new.
    pub fn new(identity: Identity, target: Target, secret: Secret, nonce: Nonce) -> Self {
        let hello = Hello {
            versions: identity.versions,
            purpose: target.purpose,
            guarded: !secret.is_none(),
            features: identity.features,
            run: identity.run,
            session: identity.peer,
            epoch: target.epoch,
            nonce,
        }
        .encode();
        let (intake, output) = (Intake::new(), hello.to_vec());
        Self { identity, target, secret, hello, intake, output, state: State::AwaitWelcome }
    }

    /// What to send now; empty if there is nothing.
    pub fn poll_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Takes bytes that arrived off the front of `input`. What it leaves behind once the connection is
    /// established came after the handshake and is the caller's.
    pub fn handle_bytes(&mut self, input: &mut &[u8]) -> Result<Option<Established>, HandshakeError> {
        loop {
            let step = match &self.state {
                State::Ended(result) => return result.map(Some),
                State::AwaitWelcome => match self.intake.take(input) {
                    Some(bytes) => self.handle_welcome(bytes),
                    None if self.intake.may_begin(&Welcome::MAGIC) => return Ok(None),
                    None => Err(HandshakeError::NotRingfold),
                },
                State::AwaitVerdict { transcript, proof, established } => match self.intake.take(input) {
                    Some(bytes) => {
                        self.judge(&bytes, transcript, proof).map(|()| State::Ended(Ok(*established)))
                    }
                    None => return Ok(None),
                },
            };
            self.state = step.unwrap_or_else(|error| State::Ended(Err(error)));
        }
    }

    /// The connection ended. The reason why the handshake failed, if it had not ended before.
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
        let welcome = Welcome::decode(&bytes).map_err(|_: BadBlock| HandshakeError::NotRingfold)?;
        let established = self.agree(&welcome)?;
        let transcript = Box::new(Transcript { hello: self.hello, welcome: bytes });
        let proof = Proof(transcript.dialler(&self.secret).finalize().into_bytes().into());
        self.output.extend_from_slice(&proof.0);
        Ok(State::AwaitVerdict { transcript, proof, established })
    }

    /// Checks that a welcome is one, and answers what we asked for.
    fn agree(&self, welcome: &Welcome) -> Result<Established, HandshakeError> {
        let Identity { peer: me, run, versions, features } = self.identity;
        let error = match welcome.status {
            Status::Ok => None,
            Status::Version => Some(HandshakeError::Version { ours: versions, theirs: welcome.versions }),
            Status::WrongRun => Some(HandshakeError::WrongRun { ours: run, theirs: welcome.run }),
            Status::SecretMissing => Some(HandshakeError::TokenMissing),
            Status::SecretUnexpected => Some(HandshakeError::TokenUnexpected),
            Status::BadProof => Some(HandshakeError::Misbehaved("it judged a proof that it had not seen")),
            Status::Refused(refusal) => Some(HandshakeError::Refused(refusal)),
        };
        if let Some(error) = error {
            return Err(error);
        }
        if !versions.contains(welcome.version) || !welcome.versions.contains(welcome.version) {
            return Err(HandshakeError::Misbehaved("it chose a version that one of us does not speak"));
        }
        if !features.contains(welcome.features) {
            return Err(HandshakeError::Misbehaved("it chose a feature that was not offered"));
        }
        if run != RunId(0) && welcome.run != RunId(0) && run != welcome.run {
            return Err(HandshakeError::WrongRun { ours: run, theirs: welcome.run });
        }
        if welcome.session == me {
            return Err(HandshakeError::Refused(Refusal::Itself));
        }
        if let Some(expected) = self.target.peer.filter(|p| *p != welcome.session) {
            return Err(HandshakeError::WrongPeer { expected, found: welcome.session });
        }
        match (self.secret.is_none(), welcome.guarded) {
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

    /// Whether the verdict is in our favour, and from someone who knows the secret.
    fn judge(
        &self,
        bytes: &[u8; Verdict::BYTES],
        transcript: &Transcript,
        proof: &Proof,
    ) -> Result<(), HandshakeError> {
        let verdict = Verdict::decode(bytes)
            .map_err(|_: BadBlock| HandshakeError::Misbehaved("its verdict does not begin like one"))?;
        match verdict.status {
            Status::Ok => {}
            Status::BadProof => return Err(HandshakeError::bad_proof(self.target.purpose)),
            Status::Refused(refusal) => return Err(HandshakeError::Refused(refusal)),
            _ => return Err(HandshakeError::Misbehaved("its verdict belongs into a welcome")),
        }
        let covered = bytes.first_chunk().expect("a verdict is longer than the part that its proof covers");
        let held = transcript.acceptor(&self.secret, proof, covered).verify_slice(&verdict.proof);
        held.map_err(|_| HandshakeError::Impostor)
    }
}
