//! A lease in etcd, by its JSON gateway: the master that holds it is active.
//!
//! A key with a time to live names the holder. It is created only if it does not exist, so there is one holder at a time, and its
//! revision is the term of the holder: later holders have higher ones. A key without a time to live says that the run has begun.

use crate::Error;
use crate::error::invalid;
use ringfold_fabric::clock::{self, Clock};
use ringfold_fabric::poller::Poller;
use ringfold_proto::coordinator::LeaseState;
use ringfold_proto::id::Term;
use ringfold_proto::limits::MASTERS_MAX;
use ringfold_proto::text::Printable;
use ringfold_proto::time::Time;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time to live of the lease, in seconds.
const TTL_SECONDS: u64 = 4;

/// How often the lease is renewed, or asked for.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_millis(1500);

/// The end of a lease is assumed this much earlier than its time to live says.
const MARGIN: Duration = Duration::from_millis(500);

/// A shorter suspension of this host is within the margin, and may be an error of measurement.
const SUSPENDED_MIN: Duration = Duration::from_millis(50);

/// Most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Where the lease is: `etcd://HOST:PORT,HOST:PORT/PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EtcdAddress {
    /// The addresses of the cluster's members.
    endpoints: Vec<String>,
    /// The prefix of the keys.
    path: String,
}

impl EtcdAddress {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            invalid!(
                "invalid lease {text:?}: {why}; expected etcd://HOST:PORT/PATH, as in etcd://10.0.0.7:2379/my-run"
            )
        };
        let rest = text.strip_prefix("etcd://").ok_or_else(|| wrong("it does not begin with etcd://"))?;
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.is_empty() {
            return Err(wrong("it has no path, which must be another one for each run"));
        }
        let endpoints: Vec<_> = hosts.split(',').map(|host| host.trim().to_owned()).collect();
        let is_address =
            |host: &String| host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !endpoints.iter().all(is_address) {
            return Err(wrong("a host or a port is missing"));
        }
        Ok(Self { endpoints, path: path.to_owned() })
    }
}

/// Holds the lease, or asks for it, on a thread of its own.
pub(super) struct EtcdLease {
    /// Each with [`clock::suspended`] before etcd was asked.
    states: Receiver<(LeaseState, Duration)>,
    /// The last one.
    last: Option<(LeaseState, Duration)>,
    has_begun: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EtcdLease {
    /// Begins to ask for the lease. The poller is woken when its state changes.
    pub fn start(address: EtcdAddress, me: u16, clock: Clock, poller: Arc<Poller>) -> io::Result<Self> {
        let (sender, states) = mpsc::channel();
        let (has_begun, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begun, end) = (has_begun.clone(), ends.clone());
        let mut holder =
            Holder { client: Client { address, next: 0 }, me, clock, held: None, wrote_begun: false };
        let body = move || {
            let mut is_failing = false;
            while !end.load(Ordering::Acquire) {
                let (began, suspended) = (Instant::now(), clock::suspended());
                match holder.step(begun.load(Ordering::Acquire)) {
                    Ok(state) => {
                        is_failing = false;
                        if sender.send((state, suspended)).is_err() {
                            break;
                        }
                        poller.kick();
                    }
                    Err(error) => {
                        if !is_failing {
                            tracing::warn!(target: "ringfold::master", "etcd cannot be asked for the lease: {error}");
                        }
                        is_failing = true;
                    }
                }
                std::thread::park_timeout(INTERVAL.saturating_sub(began.elapsed()));
            }
            holder.release();
        };
        let thread = std::thread::Builder::new().name("ringfold-lease".into()).spawn(body)?;
        Ok(Self { states, last: None, has_begun, ends, thread: Some(thread) })
    }

    /// The next state. It ends as much earlier as this host was suspended since etcd was asked, which the time of the machine does
    /// not count.
    pub fn next_state(&mut self) -> Option<LeaseState> {
        self.next_state_after(clock::suspended())
    }

    fn next_state_after(&mut self, suspended: Duration) -> Option<LeaseState> {
        let slept = |at: Duration| suspended.saturating_sub(at);
        let (mut state, at) = match self.states.try_recv() {
            Ok(new) => new,
            Err(_) => self.last.take_if(|(_, at)| slept(*at) >= SUSPENDED_MIN)?,
        };
        if let LeaseState::Held { until, .. } = &mut state {
            *until = Time(until.0.saturating_sub(slept(at).as_nanos() as u64));
        }
        self.last = Some((state, suspended));
        Some(state)
    }

    /// The run has members: a master that takes over waits for them.
    pub fn note_members(&self) {
        self.has_begun.store(true, Ordering::Release);
    }
}

impl Drop for EtcdLease {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its requests have deadlines, and it does not panic.
            let _ = thread.join();
        }
    }
}

/// What the thread knows.
struct Holder {
    client: Client,
    me: u16,
    clock: Clock,
    /// The lease and the term, if this master holds it.
    held: Option<(String, Term)>,
    wrote_begun: bool,
}

impl Holder {
    /// Renews the lease, or asks for it.
    fn step(&mut self, has_begun: bool) -> Result<LeaseState, EtcdError> {
        if let Some((lease, term)) = self.held.clone() {
            let until = self.until();
            if !self.client.keep_alive(&lease)? {
                self.held = None;
                return Ok(LeaseState::Unknown);
            }
            if has_begun && !self.wrote_begun {
                self.client.put(&self.client.key("begun"), "1")?;
                self.wrote_begun = true;
            }
            return Ok(LeaseState::Held { term, until, has_members: has_begun });
        }
        // Etcd counts from some time between the request and the answer.
        let until = self.until();
        let lease = self.client.grant()?;
        let (key, begun) = (self.client.key("active"), self.client.key("begun"));
        let taken = self.client.take(&key, &self.me.to_string(), &lease, &begun)?;
        let state = match taken {
            Taken::Mine { term, has_begun } => {
                self.held = Some((lease, term));
                self.wrote_begun = has_begun;
                return Ok(LeaseState::Held { term, until, has_members: has_begun });
            }
            Taken::Other { value, term } => {
                value.map_or(LeaseState::Unknown, |by| LeaseState::HeldBy { by, term })
            }
        };
        // Ends by itself if this fails.
        let _ = self.client.revoke(&lease);
        Ok(state)
    }

    /// When a lease that is granted or renewed now ends at the earliest.
    fn until(&self) -> Time {
        self.clock.now() + (Duration::from_secs(TTL_SECONDS) - MARGIN)
    }

    fn release(&mut self) {
        if let Some((lease, _)) = self.held.take() {
            // Otherwise it ends by itself.
            let _ = self.client.revoke(&lease);
        }
    }
}

/// Whose the key is after the attempt to take it.
enum Taken {
    Mine { term: Term, has_begun: bool },
    Other { value: Option<u16>, term: Term },
}

/// Why etcd could not be used.
#[derive(Debug, thiserror::Error)]
enum EtcdError {
    #[error("{0}: {1}")]
    Unreachable(String, io::Error),
    #[error("unexpected answer of {}: {}", .0, Printable(.1))]
    Answer(String, String),
}

/// Sends requests to the first member of the cluster that answers.
struct Client {
    address: EtcdAddress,
    next: usize,
}

impl Client {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.address.path)
    }

    fn grant(&mut self) -> Result<String, EtcdError> {
        self.ask("/v3/lease/grant", &json!({ "TTL": TTL_SECONDS }), |answer| {
            answer["ID"].as_str().map(str::to_owned)
        })
    }

    /// Whether the lease still exists.
    fn keep_alive(&mut self, lease: &str) -> Result<bool, EtcdError> {
        self.ask("/v3/lease/keepalive", &json!({ "ID": lease }), |answer| {
            let ttl = answer["result"].get("TTL").and_then(number).unwrap_or(0);
            answer["result"].is_object().then_some(ttl > 0)
        })
    }

    fn revoke(&mut self, lease: &str) -> Result<(), EtcdError> {
        self.ask("/v3/lease/revoke", &json!({ "ID": lease }), |answer| answer.is_object().then_some(()))
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), EtcdError> {
        let request = json!({ "key": base64(key), "value": base64(value) });
        self.ask("/v3/kv/put", &request, |answer| answer["header"].is_object().then_some(()))
    }

    /// Creates the key with the lease if it does not exist, and reads both keys.
    fn take(&mut self, key: &str, value: &str, lease: &str, begun: &str) -> Result<Taken, EtcdError> {
        let (key, begun) = (base64(key), base64(begun));
        let read = |key: &str| json!({ "request_range": { "key": key } });
        let request = json!({
            "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
            "success": [{ "request_put": { "key": key, "value": base64(value), "lease": lease } }, read(&begun)],
            "failure": [read(&key)],
        });
        self.ask("/v3/kv/txn", &request, |answer| {
            let read = |index: usize| &answer["responses"][index]["response_range"];
            if answer["succeeded"].as_bool().unwrap_or(false) {
                let term = Term(number(&answer["header"]["revision"])?);
                let has_begun = read(1)["kvs"].as_array().is_some_and(|found| !found.is_empty());
                return Some(Taken::Mine { term, has_begun });
            }
            let found = &read(0)["kvs"][0];
            let value = (0..MASTERS_MAX as u16)
                .find(|index| found["value"].as_str() == Some(&base64(&index.to_string())));
            Some(Taken::Other { value, term: Term(number(&found["create_revision"])?) })
        })
    }

    fn ask<T>(
        &mut self,
        path: &str,
        request: &Value,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, EtcdError> {
        let mut failure = None;
        for _ in 0..self.address.endpoints.len() {
            let endpoint = self.address.endpoints[self.next % self.address.endpoints.len()].clone();
            let wrong =
                |answer: &str| EtcdError::Answer(endpoint.clone(), answer.chars().take(200).collect());
            match post(&endpoint, path, &request.to_string()) {
                Ok(answer) => {
                    let value: Value = serde_json::from_str(&answer).map_err(|_| wrong(&answer))?;
                    return read(&value).ok_or_else(|| wrong(&answer));
                }
                Err(error) => failure = Some(EtcdError::Unreachable(endpoint, error)),
            }
            self.next += 1;
        }
        Err(failure.unwrap_or_else(|| EtcdError::Answer(String::new(), "no address".into())))
    }
}

/// Sends a request, and returns the body of the answer. HTTP/1.0, so that the body ends with the connection.
fn post(endpoint: &str, path: &str, body: &str) -> io::Result<String> {
    let end = Instant::now() + REQUEST_MAX;
    let left = || match end.saturating_duration_since(Instant::now()) {
        left if left.is_zero() => Err(io::Error::from(ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let addresses: Vec<_> = endpoint.to_socket_addrs()?.collect();
    let mut stream = connect(&addresses, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    let bytes = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.0\r\nHost: {endpoint}\r\nContent-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let count = stream.read(&mut piece)?;
        answer.extend_from_slice(&piece[..count]);
        // A stream of answers does not end: the first line is enough.
        let is_line = answer.ends_with(b"\n")
            && path.ends_with("/keepalive")
            && body_of(&answer).is_some_and(|b| !b.is_empty());
        if count == 0 || is_line {
            break;
        }
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "the answer is too long"));
        }
    }
    let body =
        body_of(&answer).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP"))?;
    Ok(String::from_utf8_lossy(body).into_owned())
}

/// Connects to the first address that answers. Each gets an equal share of the time.
fn connect(addresses: &[SocketAddr], left: Duration) -> io::Result<TcpStream> {
    let mut failure = ErrorKind::NotFound.into();
    for address in addresses {
        match TcpStream::connect_timeout(address, left / addresses.len() as u32) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn body_of(answer: &[u8]) -> Option<&[u8]> {
    answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| &answer[at + 4..])
}

/// A number, which etcd writes as a text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            encoded.push(if digit <= chunk.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_have_hosts_ports_and_a_path() {
        let address = EtcdAddress::parse("etcd://a:2379, b:2379/runs/one").unwrap();
        assert_eq!(address.endpoints, ["a:2379", "b:2379"]);
        assert_eq!(address.path, "runs/one");
        for wrong in ["http://a:2379/x", "etcd://a/x", "etcd://a:2379", "etcd://a:2379/"] {
            let error = EtcdAddress::parse(wrong).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn keys_are_encoded_as_base64() {
        assert_eq!(["", "f", "fo", "foo", "foob"].map(base64), ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn the_time_of_a_lease_counts_from_the_request_and_not_from_a_late_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let clock = Clock::start();
        let etcd = std::thread::spawn(move || {
            let answer = |delay: Duration, body: &str| {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut piece) = (Vec::new(), [0; 4096]);
                // The grant is decided when the request has arrived.
                while !request.ends_with(b"}") {
                    let read = stream.read(&mut piece).unwrap();
                    request.extend_from_slice(&piece[..read]);
                }
                let arrived = clock.now();
                std::thread::sleep(delay);
                write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
                arrived
            };
            let granted = answer(Duration::from_millis(300), r#"{"ID":"7","TTL":"4"}"#);
            answer(Duration::ZERO, r#"{"header":{"revision":"5"},"succeeded":true,"responses":[{},{}]}"#);
            granted
        });
        let address = EtcdAddress { endpoints: vec![endpoint], path: "run".into() };
        let client = Client { address, next: 0 };
        let mut holder = Holder { client, me: 0, clock, held: None, wrote_begun: false };
        let state = holder.step(false).unwrap();
        holder.held = None;
        let LeaseState::Held { until, term: Term(5), .. } = state else { panic!("{state:?}") };
        assert!(until <= etcd.join().unwrap() + (Duration::from_secs(TTL_SECONDS) - MARGIN));
    }

    #[test]
    fn time_in_which_the_host_was_suspended_counts() {
        let (sender, states) = mpsc::channel();
        let (has_begun, ends) = (Arc::default(), Arc::default());
        let mut lease = EtcdLease { states, last: None, has_begun, ends, thread: None };
        let seconds = Duration::from_secs;
        let held = |until: u64| LeaseState::Held {
            term: Term(1),
            until: Time::ZERO + seconds(until),
            has_members: true,
        };
        sender.send((held(100), seconds(7))).unwrap();
        assert_eq!(lease.next_state_after(seconds(7)), Some(held(100)));
        assert_eq!(lease.next_state_after(seconds(7) + SUSPENDED_MIN / 2), None);
        assert_eq!(lease.next_state_after(seconds(17)), Some(held(90)));
        assert_eq!(lease.next_state_after(seconds(17)), None);
        // Etcd was asked before the suspension, and has answered after it.
        sender.send((held(103), seconds(17))).unwrap();
        assert_eq!(lease.next_state_after(seconds(20)), Some(held(100)));
        assert!(clock::suspended() < seconds(u64::from(u32::MAX)), "it can be read");
    }

    #[test]
    fn all_addresses_of_a_name_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (open, closed) = (listener.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(connect(&[closed, open], REQUEST_MAX).is_ok());
        assert!(connect(&[closed], REQUEST_MAX).is_err() && connect(&[], REQUEST_MAX).is_err());
    }
}
