//! The end that is dialled.

use super::{Established, HandshakeError, Identity, Intake, Secret, Transcript};
use crate::hello::{BadBlock, Features, Hello, Nonce, Proof, Refusal, Status, Verdict, Welcome};
use crate::id::RunId;
use hmac::Mac;

/// How an acceptor finds the secret that a dialler must know. Closures can be used for it.
pub trait SecretFor {
    /// The token for [`crate::hello::Purpose::Control`]; for all other purposes the key of
    /// `hello.epoch`, or a refusal if there is no such epoch or `hello.session` is not a member.
    fn secret_for(&self, hello: &Hello) -> Result<Secret, Refusal>;
}

impl<F: Fn(&Hello) -> Result<Secret, Refusal>> SecretFor for F {
    fn secret_for(&self, hello: &Hello) -> Result<Secret, Refusal> {
        self(hello)
    }
}

/// The acceptor's side of a handshake.
#[derive(Clone)]
pub struct Acceptor {
    identity: Identity,
    nonce: Nonce,
    intake: Intake,
    output: Vec<u8>,
    state: State,
}

#[derive(Clone)]
enum State {
    AwaitHello,
    AwaitProof { transcript: Box<Transcript>, secret: Secret, established: Established },
    Ended(Result<Established, HandshakeError>),
}

/// What a hello came to: consent, or the status for the dialler and the error for ourselves.
type Opinion = Result<(Secret, Established), (Status, HandshakeError)>;

impl Acceptor {
    /// Awaits a hello. The nonce must be random and new.
    pub fn new(identity: Identity, nonce: Nonce) -> Self {
        Self { identity, nonce, intake: Intake::new(), output: Vec::new(), state: State::AwaitHello }
    }

    /// What to send now; empty if there is nothing.
    pub fn poll_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Takes bytes that arrived off the front of `input`. What it leaves behind once the connection is
    /// established came after the handshake and is the caller's.
    pub fn handle_bytes(
        &mut self,
        input: &mut &[u8],
        secrets: &impl SecretFor,
    ) -> Result<Option<Established>, HandshakeError> {
        loop {
            let state = core::mem::replace(&mut self.state, State::AwaitHello);
            self.state = match state {
                State::Ended(result) => {
                    self.state = State::Ended(result);
                    return result.map(Some);
                }
                State::AwaitHello => match self.intake.take(input) {
                    Some(bytes) => self.handle_hello(bytes, secrets),
                    None if self.intake.may_begin(&Hello::MAGIC) => return Ok(None),
                    None => State::Ended(Err(HandshakeError::NotRingfold)),
                },
                State::AwaitProof { transcript, secret, established } => match self.intake.take(input) {
                    Some(bytes) => State::Ended(self.judge(Proof(bytes), &transcript, &secret, established)),
                    None => {
                        self.state = State::AwaitProof { transcript, secret, established };
                        return Ok(None);
                    }
                },
            };
        }
    }

    /// The connection ended. The reason why the handshake failed, if it had not ended before.
    pub fn handle_end(&mut self) -> HandshakeError {
        let missing = match &self.state {
            State::Ended(Err(error)) => return *error,
            State::Ended(Ok(_)) => "first frame",
            State::AwaitHello => "hello",
            State::AwaitProof { .. } => "proof",
        };
        HandshakeError::Truncated { missing }
    }

    fn handle_hello(&mut self, bytes: [u8; Hello::BYTES], secrets: &impl SecretFor) -> State {
        let opinion = match Hello::decode(&bytes) {
            Ok(hello) => self.opinion(&hello, secrets),
            Err(BadBlock::Purpose(_)) => Err(refused(Refusal::WrongPurpose)),
            // Whoever does not begin with our magic would not understand a welcome either.
            Err(BadBlock::Magic | BadBlock::Length { .. }) => {
                return State::Ended(Err(HandshakeError::NotRingfold));
            }
        };
        let agreed = opinion.as_ref().ok().map(|(secret, established)| (!secret.is_none(), *established));
        let welcome = Welcome {
            version: agreed.map_or(0, |(_, e)| e.version),
            status: opinion.as_ref().map_or_else(|(status, _)| *status, |_| Status::Ok),
            guarded: agreed.is_some_and(|(guarded, _)| guarded),
            versions: self.identity.versions,
            features: agreed.map_or(Features::default(), |(_, e)| e.features),
            run: self.identity.run,
            session: self.identity.peer,
            nonce: self.nonce,
        }
        .encode();
        self.output.extend_from_slice(&welcome);
        match opinion {
            Ok((secret, established)) => {
                let transcript = Box::new(Transcript { hello: bytes, welcome });
                State::AwaitProof { transcript, secret, established }
            }
            Err((_, error)) => State::Ended(Err(error)),
        }
    }

    fn opinion(&self, hello: &Hello, secrets: &impl SecretFor) -> Opinion {
        let Identity { peer: me, run, versions, features } = self.identity;
        let Some(version) = versions.meet(hello.versions) else {
            let error = HandshakeError::Version { ours: versions, theirs: hello.versions };
            return Err((Status::Version, error));
        };
        if run != RunId(0) && hello.run != RunId(0) && run != hello.run {
            return Err((Status::WrongRun, HandshakeError::WrongRun { ours: run, theirs: hello.run }));
        }
        if hello.session == me {
            return Err(refused(Refusal::Itself));
        }
        let secret = secrets.secret_for(hello).map_err(refused)?;
        match (hello.guarded, secret.is_none()) {
            (false, false) => return Err((Status::SecretMissing, HandshakeError::TokenMissing)),
            (true, true) => return Err((Status::SecretUnexpected, HandshakeError::TokenUnexpected)),
            _ => {}
        }
        let established = Established {
            peer: hello.session,
            purpose: hello.purpose,
            epoch: hello.epoch,
            run: if run == RunId(0) { hello.run } else { run },
            version,
            features: features.both(hello.features),
        };
        Ok((secret, established))
    }

    fn judge(
        &mut self,
        proof: Proof,
        transcript: &Transcript,
        secret: &Secret,
        established: Established,
    ) -> Result<Established, HandshakeError> {
        if transcript.dialler(secret).verify_slice(&proof.0).is_err() {
            // Who has not proven itself is shown nothing that depends on the secret.
            let verdict = Verdict { status: Status::BadProof, proof: [0; 32] };
            self.output.extend_from_slice(&verdict.encode());
            return Err(HandshakeError::bad_proof(established.purpose));
        }
        let mut verdict = Verdict { status: Status::Ok, proof: [0; 32] };
        let bytes = verdict.encode();
        let covered = bytes.first_chunk().expect("a verdict is longer than the part that its proof covers");
        verdict.proof = transcript.acceptor(secret, &proof, covered).finalize().into_bytes().into();
        self.output.extend_from_slice(&verdict.encode());
        Ok(established)
    }
}

fn refused(refusal: Refusal) -> (Status, HandshakeError) {
    (Status::Refused(refusal), HandshakeError::Refused(refusal))
}
