//! A connection to a master that asks for the status of its run, and passes on the commands of operators.

use crate::control::ControlConnection;
use crate::error::invalid;
use crate::master::Status;
use crate::settings::{self, Given, Settings, User, table};
use crate::{Error, MASTER_PORT, limits, protection};
use ringfold_fabric::dialer::{Credentials, DialError, DialTiming, Dialed, dial_while};
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::poller::{Poller, Readiness};
use ringfold_fabric::tls::{Security, TlsFiles};
use ringfold_proto::cause::MasterLoss;
use ringfold_proto::handshake::{DialTarget, HandshakeError, Identity};
use ringfold_proto::hello::ConnectionRejection;
use ringfold_proto::id::RunId;
use ringfold_proto::observe::{ObserverAnswer, ObserverRequest};
use ringfold_proto::peer::Failure;
use ringfold_proto::text::Printable;
use serde_json::Value;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to connect as an observer. What is not set here is taken from the [settings](crate::settings).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ObserverOptions {
    token: Option<JoinToken>,
    admin_token: Option<JoinToken>,
    tls: Option<TlsFiles>,
    insecure: Option<bool>,
    commands: bool,
    given: Given,
}

impl ObserverOptions {
    /// The join token of the run.
    pub fn token(mut self, token: impl Into<JoinToken>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The token of operators.
    pub fn admin_token(mut self, token: impl Into<JoinToken>) -> Self {
        self.admin_token = Some(token.into());
        self
    }

    /// The certificates of the run.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Whether connections are not encrypted.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = Some(insecure);
        self
    }

    /// Asks for the right to change the run: needs the token of operators, or a certificate with the role `admin`.
    pub fn commands(mut self, commands: bool) -> Self {
        self.commands = commands;
        self
    }

    /// Settings by argument.
    pub fn settings(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// Connects to the active one of these masters, `host:port` each, separated by commas. If none is active, to one that answers.
    ///
    /// Invalid settings, tokens and certificates are an [`Error::BadArgument`], and so are commands that a master does not take
    /// from this caller.
    pub fn connect(&self, masters: &str) -> Result<Observer, Error> {
        let settings = Settings::start(User::Peer, &self.given)?;
        let access = self.access(&settings)?;
        let (mut failures, mut standby) = (Vec::new(), None);
        let first = match masters.contains(',') {
            true => limits::OBSERVER_FIRST_ATTEMPT_MAX,
            false => limits::OBSERVER_CONNECT_MAX,
        };
        let mut listed: Vec<_> = masters.split(',').map(|text| (text.trim().to_owned(), first)).collect();
        let mut next = 0;
        while let Some((master, answer_max)) = listed.get(next).cloned() {
            next += 1;
            // Only masters that did not answer in time are asked again with a longer limit.
            if answer_max > first && standby.is_some() {
                break;
            }
            let asked = Instant::now();
            let connected =
                self.connect_one(&master, &settings, &access, answer_max).and_then(|mut observer| {
                    let status = observer.status()?;
                    Ok((observer, status))
                });
            match connected {
                Ok((observer, status)) if status.master.active => return Ok(observer),
                Ok((observer, status)) => {
                    let index = status.master.active_position.map(|position| usize::from(position) - 1);
                    let active = index.and_then(|index| status.master.masters.get(index));
                    if let Some(active) = active.filter(|active| !listed.iter().any(|(at, _)| at == *active))
                    {
                        listed.push((active.clone(), first));
                    }
                    standby.get_or_insert(observer);
                }
                Err(error @ Error::BadArgument(_)) => return Err(error),
                Err(_) if answer_max < limits::OBSERVER_CONNECT_MAX && asked.elapsed() >= answer_max => {
                    listed.push((master, limits::OBSERVER_CONNECT_MAX));
                }
                Err(error) => failures.push(format!("{master}: {error}")),
            }
        }
        standby.ok_or_else(|| Failure::MasterLost(MasterLoss::Unreachable(failures.join("; "))).into())
    }

    /// What shows who asks.
    fn access(&self, settings: &Settings) -> Result<Access, Error> {
        let token = settings::token(settings, self.token.clone())?;
        let admin_token =
            settings::token_of_file(settings, &table::ADMIN_TOKEN_FILE, self.admin_token.clone())?;
        let is_operator = self.commands && !admin_token.is_none();
        let token = if is_operator { admin_token } else { token };
        let tls = settings::tls(settings, self.tls.clone())?;
        let is_insecure = self.insecure.unwrap_or_else(|| settings.is_on(&table::INSECURE));
        let security = protection::keys(&token, tls.as_ref(), is_insecure)?;
        Ok(Access { token, is_operator, security })
    }

    fn connect_one(
        &self,
        master: &str,
        settings: &Settings,
        access: &Access,
        answer_max: Duration,
    ) -> Result<Observer, Error> {
        let addresses = resolve(master)?;
        let Access { token, security, .. } = access;
        protection::check_dial(token, security, &addresses, settings)?;
        let system = |error: io::Error| Error::system("connecting failed", &error);
        let me = security.peer();
        let poller =
            Arc::new(Poller::with_settings(settings).map_err(system)?.with_security(security.clone()));
        let credentials = Credentials {
            identity: Identity::new(me, RunId(0)),
            target: if self.commands { DialTarget::commanded() } else { DialTarget::observed() },
            secret: token.secret(),
        };
        let end = Instant::now() + answer_max;
        let timing = DialTiming { answer_max, ..DialTiming::of(&poller) };
        let may_wait = |_: &_| match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(DialFailure::System(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {answer_max:?}"),
            ))),
            left => Ok(left),
        };
        let dialed: Result<Dialed, DialFailure> =
            dial_while(&addresses, &credentials, timing, &poller, may_wait);
        let dialed = dialed.map_err(|failure| match failure {
            DialFailure::Refused(error) if self.commands => access.explain(master, &error),
            DialFailure::Refused(error) => Error::System(error.to_string()),
            DialFailure::System(error) => Error::System(error.to_string()),
        })?;
        Ok(Observer { control: ControlConnection::new(dialed.connection), poller, address: dialed.address })
    }
}

/// What shows a master who asks.
struct Access {
    token: JoinToken,
    /// Whether the token is that of operators.
    is_operator: bool,
    security: Arc<Security>,
}

impl Access {
    /// The error of an operator that a master refuses.
    fn explain(&self, master: &str, error: &DialError) -> Error {
        let refusal = error.failures.iter().find_map(|(_, rejection)| rejection.error);
        let why = match refusal {
            Some(HandshakeError::TokenMissing | HandshakeError::BadToken) if self.is_operator => {
                "it has another token of operators. Give it by --admin-token-file or RINGFOLD_ADMIN_TOKEN_FILE".into()
            }
            Some(HandshakeError::TokenMissing | HandshakeError::BadToken) => {
                "the token of operators is missing. Give it by --admin-token-file or RINGFOLD_ADMIN_TOKEN_FILE; the join token is \
                 not enough"
                    .into()
            }
            Some(HandshakeError::Rejected(
                reason @ (ConnectionRejection::NoAdmin | ConnectionRejection::Certificate(_)),
            )) => reason.to_string(),
            _ => return Error::System(error.to_string()),
        };
        invalid!("the master at {master} refuses: {why}")
    }
}

/// Why a master was not reached.
enum DialFailure {
    System(io::Error),
    Refused(DialError),
}

impl From<io::Error> for DialFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<DialError> for DialFailure {
    fn from(error: DialError) -> Self {
        Self::Refused(error)
    }
}

/// The addresses of a master.
fn resolve(master: &str) -> Result<Vec<SocketAddr>, Error> {
    let resolved = settings::with_port(master, MASTER_PORT).to_socket_addrs().map(Iterator::collect);
    resolved.map_err(|error| Error::System(format!("cannot resolve {master:?}: {error}")))
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::System(format!("the master sent a status that cannot be read: {error}"))
}

/// Removes what could control a terminal from the texts of a status.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = Printable(&*text).to_string(),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A connection to a master, made by [`ObserverOptions::connect`].
#[derive(Debug)]
pub struct Observer {
    control: ControlConnection<ObserverAnswer>,
    poller: Arc<Poller>,
    address: SocketAddr,
}

impl Observer {
    /// The address of the master.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The status of the run.
    pub fn status(&mut self) -> Result<Status, Error> {
        let json = self.status_json()?;
        serde_json::from_str(&json).map_err(unreadable)
    }

    /// The status of the run, as an object of JSON. Its texts have no control characters, whatever the master sends.
    pub fn status_json(&mut self) -> Result<String, Error> {
        match self.ask(&ObserverRequest::Status)? {
            ObserverAnswer::Status(json) => {
                let mut status = serde_json::from_str(&json).map_err(unreadable)?;
                make_printable(&mut status);
                Ok(Printable(status).to_string())
            }
            ObserverAnswer::Done(text) | ObserverAnswer::Refused(text) => {
                Err(Error::System(Printable(text).to_string()))
            }
        }
    }

    /// Evicts the peer with this id or name, or the only one that either begins so. The reason is for the peer and the log.
    pub fn evict(&mut self, peer: &str, reason: &str) -> Result<String, Error> {
        self.command(&ObserverRequest::Evict { peer: peer.into(), reason: reason.into() })
    }

    /// Refuses new peers, or accepts them again.
    pub fn drain(&mut self, on: bool) -> Result<String, Error> {
        self.command(&ObserverRequest::Drain { on })
    }

    fn command(&mut self, request: &ObserverRequest) -> Result<String, Error> {
        match self.ask(request)? {
            ObserverAnswer::Done(text) => Ok(Printable(text).to_string()),
            ObserverAnswer::Refused(text) => Err(invalid!("{}", Printable(text))),
            ObserverAnswer::Status(_) => Err(Error::System("the master sent another answer".into())),
        }
    }

    fn ask(&mut self, request: &ObserverRequest) -> Result<ObserverAnswer, Error> {
        let lost = |error: io::Error| {
            Error::System(format!("the connection to the master at {} is lost: {error}", self.address))
        };
        let end = Instant::now() + limits::OBSERVER_ANSWER_MAX;
        self.control.send(request).map_err(lost)?;
        let mut ready = Readiness::default();
        loop {
            self.control.flush().map_err(lost)?;
            if let Some(answer) = self.control.receive().map_err(lost)? {
                return Ok(answer);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = limits::OBSERVER_ANSWER_MAX.as_secs();
                return Err(Error::TimedOut(format!(
                    "the master at {} did not answer within {seconds} s",
                    self.address
                )));
            }
            self.poller.wait(&mut ready, left).map_err(lost)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold_fabric::clock::Clock;
    use ringfold_fabric::listener::{Listener, Outcome};
    use ringfold_proto::handshake::Secret;
    use ringfold_proto::hello::Hello;
    use ringfold_proto::id::PeerId;
    use std::sync::mpsc::channel;

    /// Answers one question of each connection, as a master that was taken over.
    fn serve(answers: Vec<ObserverAnswer>) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let (sender, address) = channel();
        let thread = std::thread::spawn(move || {
            let poller = Arc::new(Poller::new().unwrap());
            let mut listener = Listener::bind_one("127.0.0.1:0".parse().unwrap(), &poller).unwrap();
            sender.send(listener.address()).unwrap();
            let (clock, mut ready, end) =
                (Clock::start(), Readiness::default(), Instant::now() + Duration::from_secs(60));
            let (mut answers, mut open) = (answers.into_iter(), None::<ControlConnection<ObserverRequest>>);
            while answers.len() > 0 || open.is_some() {
                assert!(Instant::now() < end, "nobody asks");
                poller.wait(&mut ready, Duration::from_millis(10)).unwrap();
                for token in ready.tokens() {
                    let identity = Identity::new(PeerId(9), RunId(0));
                    listener.handle_ready(clock.now(), token, identity, &|_: &Hello| Ok(Secret::token("")));
                }
                while let Some(outcome) = listener.poll_outcome() {
                    if let Outcome::Established(_, connection, _) = outcome {
                        open = Some(ControlConnection::new(connection));
                    }
                }
                let Some(control) = &mut open else { continue };
                match control.receive() {
                    Ok(Some(_)) => match answers.next() {
                        Some(answer) => control.send(&answer).and_then(|()| control.flush()).unwrap(),
                        None => open = None,
                    },
                    Ok(None) => {}
                    Err(_) => open = None,
                }
            }
        });
        (address.recv().unwrap(), thread)
    }

    #[test]
    fn what_a_master_sends_controls_no_terminal() {
        let evil = "\u{1b}[2J\u{1b}]52;c;aGk=\u{7}\u{9b}1mhealthy\n\u{202e}";
        let status = serde_json::json!({ "verdict": evil, evil: [evil], "peers": [{ "name": evil }] });
        let poller = Arc::new(Poller::new().unwrap());
        let (to, thread) = serve(vec![
            ObserverAnswer::Status(status.to_string()),
            ObserverAnswer::Done(evil.into()),
            ObserverAnswer::Refused(evil.into()),
            ObserverAnswer::Refused(evil.into()),
        ]);
        let credentials = Credentials {
            identity: Identity::new(PeerId(1), RunId(0)),
            target: DialTarget::observed(),
            secret: JoinToken::default().secret(),
        };
        let end = Instant::now() + Duration::from_secs(60);
        let dialed: Result<Dialed, DialFailure> =
            dial_while(&[to], &credentials, DialTiming::of(&poller), &poller, |_| {
                assert!(Instant::now() < end, "no connection");
                Ok(Duration::from_millis(10))
            });
        let Ok(dialed) = dialed else { panic!("not connected") };
        let control = ControlConnection::new(dialed.connection);
        let mut observer = Observer { control, poller, address: to };
        let json = observer.status_json().unwrap();
        let found: Value = serde_json::from_str(&json).unwrap();
        let texts = [
            json.clone(),
            found["verdict"].as_str().unwrap().to_owned(),
            found["peers"][0]["name"].as_str().unwrap().to_owned(),
            observer.evict("a", "b").unwrap(),
            observer.evict("a", "b").unwrap_err().to_string(),
            observer.status_json().unwrap_err().to_string(),
        ];
        for text in texts {
            assert!(text.contains("healthy") && text == Printable(&text).to_string(), "{text:?}");
        }
        drop(observer);
        thread.join().unwrap();
    }
}
