//! Answers the questions of doctors: in a master, and in a running doctor.

use super::connection::MessageConnection;
use super::limits;
use parking_lot::{Condvar, Mutex};
use ringfold_fabric::connection::BlockingConnection;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::join_token::JoinToken;
use ringfold_fabric::staged_dial::{self, ConnectSettings, StageFailure};
use ringfold_fabric::tls::Security;
use ringfold_fabric::{probe, random};
use ringfold_proto::doctor::{DialBack, DoctorAnswer, DoctorRequest};
use ringfold_proto::handshake::{DialTarget, Identity};
use ringfold_proto::id::RunId;
use ringfold_proto::limits::NAME_BYTES_MAX;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The release of this build.
pub(super) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Starts an examination of all peers of a run. Their answers end with the channel.
pub(crate) type StartExamination = Box<dyn Fn() -> Option<Receiver<DoctorAnswer>> + Send + Sync>;

/// Answers doctors, on threads of its own. Clones are one service.
#[derive(Clone)]
pub(crate) struct DoctorService(Arc<Shared>);

struct Shared {
    /// A random number, by which this process is told from others.
    instance: u64,
    name: String,
    token: JoinToken,
    security: Arc<Security>,
    /// Counts the connections that are answered.
    answering: Arc<()>,
    /// Counts the connections that are dialled back.
    dialling: Arc<()>,
    /// Held while a bandwidth is measured.
    measuring: Mutex<()>,
    /// Set if the process has checks of its own to complete.
    own_checks: Option<OwnChecks>,
    examine: Option<StartExamination>,
}

/// What only a running doctor has.
#[derive(Default)]
struct OwnChecks {
    are_done: Mutex<bool>,
    done: Condvar,
    visitors: Mutex<Vec<IpAddr>>,
    /// The instances of masters, which are no visitors: they dial because this doctor asks them to.
    masters: Mutex<Vec<u64>>,
    datagrams: Mutex<VecDeque<[u8; 16]>>,
}

impl DoctorService {
    /// The service of a master.
    pub fn of_master(
        token: JoinToken,
        security: Arc<Security>,
        examine: Option<StartExamination>,
    ) -> io::Result<Self> {
        Self::new(token, security, None, examine)
    }

    /// The service of a running doctor.
    pub(super) fn of_doctor(token: JoinToken, security: Arc<Security>) -> io::Result<Self> {
        Self::new(token, security, Some(OwnChecks::default()), None)
    }

    fn new(
        token: JoinToken,
        security: Arc<Security>,
        own_checks: Option<OwnChecks>,
        examine: Option<StartExamination>,
    ) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            instance: u64::from_le_bytes(random::bytes()?),
            name: crate::process_name::process_name(NAME_BYTES_MAX),
            token,
            security,
            answering: Arc::default(),
            dialling: Arc::default(),
            measuring: Mutex::default(),
            own_checks,
            examine,
        })))
    }

    pub(super) fn instance(&self) -> u64 {
        self.0.instance
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn security(&self) -> &Arc<Security> {
        &self.0.security
    }

    pub(super) fn token(&self) -> &JoinToken {
        &self.0.token
    }

    /// Held while a bandwidth is measured.
    pub(super) fn measuring(&self) -> &Mutex<()> {
        &self.0.measuring
    }

    /// Whether another connection can be answered.
    pub fn has_room(&self) -> bool {
        Arc::strong_count(&self.0.answering) <= limits::CONNECTIONS_MAX
    }

    /// Waits until nobody asks any more, for a limited time.
    pub(super) fn wait_until_idle(&self) {
        let (end, mut idle_since) = (Instant::now() + limits::FINISH_MAX, None);
        while Instant::now() < end {
            if Arc::strong_count(&self.0.answering) > 1 {
                idle_since = None;
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() > limits::IDLE_MIN {
                return;
            }
            std::thread::sleep(limits::IDLE_MIN / 8);
        }
    }

    /// The checks of this process are complete.
    pub(super) fn set_done(&self) {
        if let Some(own) = &self.0.own_checks {
            *own.are_done.lock() = true;
            own.done.notify_all();
        }
    }

    /// Whether a host has dialled this one.
    pub(super) fn was_visited_from(&self, ip: IpAddr) -> bool {
        self.0.own_checks.as_ref().is_some_and(|own| own.visitors.lock().contains(&ip.to_canonical()))
    }

    /// Whether a datagram with this content was announced.
    pub(super) fn expects_datagram(&self, content: &[u8]) -> bool {
        let own = self.0.own_checks.as_ref();
        own.is_some_and(|own| own.datagrams.lock().iter().any(|expected| expected == content))
    }

    /// Answers a connection, on a thread of its own.
    pub fn serve(&self, connection: BlockingConnection, from: SocketAddr) {
        // The thread holds a clone, also while it unwinds.
        let counted = self.0.answering.clone();
        if Arc::strong_count(&counted) > limits::CONNECTIONS_MAX + 1 {
            return;
        }
        let service = self.clone();
        let serve = move || {
            if let Err(error) = service.answer_all(connection, from) {
                tracing::debug!(%from, %error, "the connection of a doctor has ended");
            }
            drop(counted);
        };
        let spawned = std::thread::Builder::new().name("ringfold-doctor".into()).spawn(serve);
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot answer a doctor");
        }
    }

    fn answer_all(&self, connection: BlockingConnection, from: SocketAddr) -> io::Result<()> {
        let mut messages = MessageConnection::<DoctorAnswer, DoctorRequest>::new(connection);
        let end = Instant::now() + limits::VISIT_MAX;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = match messages.receive(left.min(limits::IDLE_MAX))? {
                DoctorRequest::About { instance, .. } => {
                    self.note_visitor(from.ip(), instance);
                    let observed = SocketAddr::new(from.ip().to_canonical(), from.port());
                    let (name, release) = (self.0.name.clone(), RELEASE.to_owned());
                    DoctorAnswer::About { instance: self.0.instance, name, release, observed }
                }
                DoctorRequest::Echo { answer_bytes, .. } => {
                    DoctorAnswer::Echo { padding: vec![0; answer_bytes as usize] }
                }
                DoctorRequest::Time => DoctorAnswer::Time { unix_us: unix_us() },
                DoctorRequest::DialBack { port, instance } => {
                    DoctorAnswer::DialedBack(self.dial_back(SocketAddr::new(from.ip(), port), instance))
                }
                DoctorRequest::Bandwidth { back } => match self.0.measuring.try_lock() {
                    Some(_measuring) => {
                        messages.send(&DoctorAnswer::Ready, limits::ANSWER_MAX)?;
                        let measure = if back { probe::send_rate } else { probe::receive_rate };
                        return measure(messages.into_inner()).map(drop);
                    }
                    None => DoctorAnswer::Busy,
                },
                DoctorRequest::Datagram { content } => match &self.0.own_checks {
                    Some(own) => {
                        let mut datagrams = own.datagrams.lock();
                        datagrams.push_back(content);
                        if datagrams.len() > limits::DATAGRAMS_MAX {
                            datagrams.pop_front();
                        }
                        DoctorAnswer::Ready
                    }
                    None => DoctorAnswer::Unsupported,
                },
                DoctorRequest::Finish => {
                    if let Some(own) = &self.0.own_checks {
                        let mut are_done = own.are_done.lock();
                        let wait = left.min(limits::FINISH_MAX);
                        own.done.wait_while_for(&mut are_done, |are_done| !*are_done, wait);
                    }
                    DoctorAnswer::Ready
                }
                DoctorRequest::ExamineAll => match &self.0.examine {
                    None => DoctorAnswer::Unsupported,
                    Some(examine) => match examine() {
                        None => DoctorAnswer::Busy,
                        Some(answers) => {
                            pass_on(&answers, &messages)?;
                            DoctorAnswer::Ready
                        }
                    },
                },
            };
            messages.send(&answer, limits::ANSWER_MAX)?;
        }
    }

    /// A master has answered.
    pub(super) fn note_master(&self, instance: u64) {
        if let Some(own) = &self.0.own_checks {
            own.masters.lock().push(instance);
        }
    }

    fn note_visitor(&self, ip: IpAddr, instance: u64) {
        let Some(own) = &self.0.own_checks else { return };
        if own.masters.lock().contains(&instance) {
            return;
        }
        let (mut visitors, ip) = (own.visitors.lock(), ip.to_canonical());
        if !visitors.contains(&ip) && visitors.len() < limits::VISITORS_MAX {
            visitors.push(ip);
        }
    }

    /// Dials the host that asked for it.
    fn dial_back(&self, to: SocketAddr, instance: u64) -> DialBack {
        let counted = self.0.dialling.clone();
        if Arc::strong_count(&counted) > limits::DIAL_BACKS_MAX + 1 {
            return DialBack::Busy;
        }
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let failed = |why: String| DialBack::Failed { why };
        let stream = match staged_dial::connect(to, ConnectSettings::default(), limits::DIAL_BACK_MAX) {
            Ok(stream) => stream,
            Err(error) => return failed(short(&error)),
        };
        let credentials = self.credentials(DialTarget::doctor());
        match staged_dial::authenticate(stream, &credentials, &self.0.security, limits::DIAL_BACK_MAX) {
            Err(StageFailure::Stalled) => failed("connected, but nothing follows".into()),
            Err(StageFailure::Rejected(rejection)) => failed(rejection.to_string()),
            Ok(reached) => {
                let mut messages = MessageConnection::new(reached.connection);
                let about = DoctorRequest::About { instance: self.0.instance, name: self.0.name.clone() };
                match messages.ask(&about, limits::DIAL_BACK_MAX) {
                    Ok(DoctorAnswer::About { instance: found, .. }) if found == instance => DialBack::Reached,
                    Ok(_) => DialBack::Stranger,
                    Err(error) => failed(error.to_string()),
                }
            }
        }
    }

    pub(super) fn credentials(&self, target: DialTarget) -> Credentials {
        let identity = Identity::new(self.0.security.peer(), RunId(0));
        Credentials { identity, target, secret: self.0.token.secret() }
    }
}

/// Sends what peers have found, until all have answered.
fn pass_on(
    answers: &Receiver<DoctorAnswer>,
    messages: &MessageConnection<DoctorAnswer, DoctorRequest>,
) -> io::Result<()> {
    let end = Instant::now() + 2 * limits::EXAMINATION_MAX;
    while let Ok(answer) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        messages.send(&answer, limits::ANSWER_MAX)?;
    }
    Ok(())
}

/// The time of this host's clock, in microseconds since 1970.
pub(super) fn unix_us() -> u64 {
    let since: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// An error of the system in few words.
pub(super) fn short(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the connection was refused".into(),
        io::ErrorKind::TimedOut => "no answer".into(),
        _ => error.to_string(),
    }
}

impl core::fmt::Debug for DoctorService {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DoctorService").field("name", &self.0.name).finish_non_exhaustive()
    }
}
