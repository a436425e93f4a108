//! The accepting end of a handshake.

use super::{Binding, BlockBuffer, Established, HandshakeError, Identity, Role, Secret, Transcript};
use crate::hello::{
    ConnectionRejection, Features, Hello, InvalidBlock, Nonce, Proof, Purpose, Status, Verdict, Welcome,
};
use crate::id::RunId;
use hmac::Mac;

/// Finds the secret that a dialler must know. Closures implement it.
pub trait SecretLookup {
    /// The token for [`crate::hello::Purpose::Control`]; for all other purposes the key of
    /// `hello.epoch`, or a rejection if there is no such epoch or `hello.session` is not a member.
    fn secret_for(&self, hello: &Hello) -> Result<Secret, ConnectionRejection>;
}

impl<F: Fn(&Hello) -> Result<Secret, ConnectionRejection>> SecretLookup for F {
    fn secret_for(&self, hello: &Hello) -> Result<Secret, ConnectionRejection> {
        self(hello)
    }
}

/// The acceptor's half of a handshake.
#[derive(Clone)]
pub struct AcceptorHandshake {
    identity: Identity,
    nonce: Nonce,
    buffer: BlockBuffer,
    output: Vec<u8>,
    binding: Option<Binding>,
    requires_encryption: bool,
    state: State,
}

#[derive(Clone)]
enum State {
    AwaitHello,
    AwaitProof { transcript: Box<Transcript>, secret: Secret, established: Established },
    Ended(Result<Established, HandshakeError>),
}

/// The result of checking a hello: on failure, the status for the dialler and the error for this end.
type HelloCheck = Result<(Secret, Established), (Status, HandshakeError)>;

impl AcceptorHandshake {
    /// Waits for a hello. The nonce must be random and new.
    pub fn new(identity: Identity, nonce: Nonce) -> Self {
        let (buffer, output) = (BlockBuffer::new(), Vec::new());
        let (binding, state) = (None, State::AwaitHello);
        Self { identity, nonce, buffer, output, binding, requires_encryption: false, state }
    }

    /// Rejects diallers that do not encrypt.
    pub fn require_encryption(&mut self) {
        self.requires_encryption = true;
    }

    /// Binds the proofs to an encrypted session. Must be called before the hello is handled.
    pub fn bind(&mut self, binding: Binding) {
        self.binding = Some(binding);
    }

    /// The bytes to send now; may be empty.
    pub fn poll_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Consumes received bytes. Bytes that remain once the connection is established follow the handshake.
    pub fn handle_bytes(
        &mut self,
        input: &mut &[u8],
        secrets: &impl SecretLookup,
    ) -> Result<Option<Established>, HandshakeError> {
        loop {
            let state = core::mem::replace(&mut self.state, State::AwaitHello);
            self.state = match state {
                State::Ended(result) => {
                    self.state = State::Ended(result);
                    return result.map(Some);
                }
                State::AwaitHello => match self.buffer.take(input) {
                    Some(bytes) => self.handle_hello(bytes, secrets),
                    None if self.buffer.can_start_with(&Hello::MAGIC) => return Ok(None),
                    None => State::Ended(Err(HandshakeError::NotRingfold)),
                },
                State::AwaitProof { transcript, secret, established } => match self.buffer.take(input) {
                    Some(bytes) => {
                        State::Ended(self.verify_proof(Proof(bytes), &transcript, &secret, established))
                    }
                    None => {
                        self.state = State::AwaitProof { transcript, secret, established };
                        return Ok(None);
                    }
                },
            };
        }
    }

    /// The connection ended: returns why the handshake failed.
    pub fn handle_end(&mut self) -> HandshakeError {
        let missing = match &self.state {
            State::Ended(Err(error)) => return *error,
            State::Ended(Ok(_)) => "first frame",
            State::AwaitHello => "hello",
            State::AwaitProof { .. } => "proof",
        };
        HandshakeError::Truncated { missing }
    }

    fn handle_hello(&mut self, bytes: [u8; Hello::BYTES], secrets: &impl SecretLookup) -> State {
        let checked = match Hello::decode(&bytes) {
            Ok(hello) => self.check_hello(&hello, secrets),
            Err(InvalidBlock::Purpose(_)) => Err(rejected(ConnectionRejection::WrongPurpose)),
            // Another protocol would not understand a welcome.
            Err(InvalidBlock::Magic | InvalidBlock::Length { .. }) => {
                return State::Ended(Err(HandshakeError::NotRingfold));
            }
        };
        let agreed = checked.as_ref().ok().map(|(secret, established)| (!secret.is_none(), *established));
        let welcome = Welcome {
            version: agreed.map_or(0, |(_, e)| e.version),
            status: checked.as_ref().map_or_else(|(status, _)| *status, |_| Status::Ok),
            has_secret: agreed.is_some_and(|(has_secret, _)| has_secret),
            versions: self.identity.versions,
            features: agreed.map_or(Features::default(), |(_, e)| e.features),
            run: self.identity.run,
            session: self.identity.peer,
            nonce: self.nonce,
        }
        .encode();
        self.output.extend_from_slice(&welcome);
        match checked {
            Ok((secret, established)) => {
                let transcript = Box::new(Transcript { hello: bytes, welcome, binding: self.binding });
                State::AwaitProof { transcript, secret, established }
            }
            Err((_, error)) => State::Ended(Err(error)),
        }
    }

    fn check_hello(&self, hello: &Hello, secrets: &impl SecretLookup) -> HelloCheck {
        let Identity { peer: me, run, versions, features } = self.identity;
        let role = match hello.purpose {
            Purpose::Masters => Role::Master,
            Purpose::Observe | Purpose::Doctor => Role::Observer,
            Purpose::Admin => Role::Admin,
            _ => Role::Peer,
        };
        if let Some(Err(problem)) = self.binding.map(|binding| binding.check_role(role)) {
            return Err(rejected(ConnectionRejection::Certificate(problem)));
        }
        let Some(version) = versions.newest_common(hello.versions) else {
            let error = HandshakeError::Version { ours: versions, theirs: hello.versions };
            return Err((Status::Version, error));
        };
        if run != RunId(0) && hello.run != RunId(0) && run != hello.run {
            return Err((Status::WrongRun, HandshakeError::WrongRun { ours: run, theirs: hello.run }));
        }
        if hello.session == me {
            return Err(rejected(ConnectionRejection::Itself));
        }
        if let Some(Binding { peer: owner, .. }) = self.binding
            && hello.session != owner
        {
            let error = HandshakeError::WrongKeys { claimed: hello.session, owner };
            return Err((Status::Rejected(ConnectionRejection::WrongKeys), error));
        }
        let secret = secrets.secret_for(hello).map_err(rejected)?;
        match (hello.has_secret, secret.is_none()) {
            (false, false) => return Err((Status::SecretMissing, HandshakeError::TokenMissing)),
            (true, true) => return Err((Status::SecretUnexpected, HandshakeError::TokenUnexpected)),
            _ => {}
        }
        // That a token is missing says more.
        if self.requires_encryption && self.binding.is_none() {
            return Err(rejected(ConnectionRejection::Plaintext));
        }
        let established = Established {
            peer: hello.session,
            purpose: hello.purpose,
            epoch: hello.epoch,
            run: if run == RunId(0) { hello.run } else { run },
            version,
            features: features.intersection(hello.features),
        };
        Ok((secret, established))
    }

    fn verify_proof(
        &mut self,
        proof: Proof,
        transcript: &Transcript,
        secret: &Secret,
        established: Established,
    ) -> Result<Established, HandshakeError> {
        let is_proven = |secret: &Secret| transcript.dialler_mac(secret).verify_slice(&proof.0).is_ok();
        let Some(secret) = &secret.accepted().find(is_proven) else {
            // An unauthenticated dialler gets nothing that depends on the secret.
            let verdict = Verdict { status: Status::BadProof, proof: [0; 32] };
            self.output.extend_from_slice(&verdict.encode());
            return Err(HandshakeError::bad_proof(established.purpose));
        };
        let mut verdict = Verdict { status: Status::Ok, proof: [0; 32] };
        let bytes = verdict.encode();
        let covered = bytes.first_chunk().expect("a verdict is longer than the part that its proof covers");
        verdict.proof = transcript.acceptor_mac(secret, &proof, covered).finalize().into_bytes().into();
        self.output.extend_from_slice(&verdict.encode());
        Ok(established)
    }
}

fn rejected(why: ConnectionRejection) -> (Status, HandshakeError) {
    (Status::Rejected(why), HandshakeError::Rejected(why))
}
