//! The HTTP server of a master, over real sockets, with valid and hostile clients.

use crate::certificates;
use ringfold::{Communicator, Master, MasterBuilder, ObserverOptions};
use ringfold_lab::skip;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Much longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);

fn local() -> MasterBuilder {
    Master::builder().listen("127.0.0.1:0").http("0")
}

/// A master, and the address of its HTTP server.
fn running(builder: MasterBuilder) -> (Master, SocketAddr) {
    let master = builder.build();
    master.run().expect("listening on free ports");
    let address = master.http_addresses()[0];
    (master, address)
}

fn join(master: &Master, name: &str) -> Communicator {
    let peer = Communicator::builder(master.addresses()[0].to_string()).name(name).build().unwrap();
    peer.connect().unwrap();
    peer
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn has(&self, header: &str) -> bool {
        self.head.to_ascii_lowercase().contains(&header.to_ascii_lowercase())
    }
}

/// A connection for requests one after the other.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next answer. Those to HEAD have no body.
    fn answer(&mut self, has_body: bool) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "the connection ended: {head:?}");
        }
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.filter(|_| has_body).map_or(0, |text| text.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// Whether the server has closed the connection, after what it has sent.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            Err(error) => panic!("not closed: {error}"),
        }
    }

    /// The next message of a stream: its kind and content. Comments are skipped.
    fn message(&mut self) -> (String, Value) {
        let (mut kind, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended");
            if let Some(text) = line.strip_prefix("event: ") {
                kind = text.trim().to_owned();
            } else if let Some(text) = line.strip_prefix("data: ") {
                return (kind, serde_json::from_str(text).unwrap());
            }
        }
    }
}

fn ask(to: SocketAddr, request: &str) -> Answer {
    let mut client = Client::connect(to);
    client.send(request.as_bytes());
    client.answer(!request.starts_with("HEAD"))
}

fn get_with(to: SocketAddr, path: &str, headers: &str) -> Answer {
    ask(to, &format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n{headers}Connection: close\r\n\r\n"))
}

fn get(to: SocketAddr, path: &str) -> Answer {
    get_with(to, path, "")
}

fn post(to: SocketAddr, path: &str, token: &str, body: &Value) -> Answer {
    let (body, authorization) = (body.to_string(), format!("Authorization: Bearer {token}\r\n"));
    let authorization = if token.is_empty() { "" } else { &authorization };
    let length = body.len();
    ask(
        to,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {to}\r\n{authorization}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

#[test]
fn every_route_is_answered_with_its_type() {
    let (master, at) = running(local());
    for (path, kind, part) in [
        ("/", "text/html", "<title>Ringfold"),
        ("/app.js", "text/javascript", "import"),
        ("/style.css", "text/css", "--card"),
        ("/icon.svg", "image/svg+xml", "<svg"),
        ("/healthz", "text/plain", "ok"),
        ("/readyz", "text/plain", "healthy"),
        ("/metrics", "text/plain; version=0.0.4", "ringfold_master_active 1"),
        ("/api/status", "application/json", "\"verdict\""),
        ("/api/status?x=1", "application/json", "\"verdict\""),
        ("/api/session", "application/json", "\"reader\""),
    ] {
        let answer = get(at, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.has(&format!("Content-Type: {kind}")), "{path}: {}", answer.head);
        assert!(answer.body.contains(part), "{path}: {}", answer.body);
        assert!(answer.has("X-Content-Type-Options: nosniff") && answer.has("default-src 'none'"), "{path}");
        let is_kept = answer.has("Cache-Control: no-cache");
        assert!(is_kept || answer.has("Cache-Control: no-store"), "{path}: {}", answer.head);
        assert!(!(is_kept && path.starts_with("/api")), "{path}");
        // The same without the body.
        let head = ask(at, &format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        assert!(head.status == 200 && head.body.is_empty() && head.has("Content-Length:"), "{path}");
    }
    let answer = get(at, "/nothing");
    assert!(answer.status == 404 && answer.json()["error"].as_str().unwrap().contains("/metrics"));
    assert_eq!(ask(at, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
    assert_eq!(get(at, "/api/evict").status, 405);
    drop(master);
    // With the master its port is free.
    TcpListener::bind(at).unwrap();
}

#[test]
fn peers_with_a_wrong_token_are_counted() {
    let (master, at) = running(local().token("a token of this run"));
    let address = master.addresses()[0].to_string();
    let wrong = "another token, not right";
    ObserverOptions::default().token(wrong).connect(&address).unwrap_err();
    Communicator::builder(&address).token(wrong).build().unwrap().connect().unwrap_err();
    let end = Instant::now() + TIMEOUT;
    while !get(at, "/metrics").body.contains("ringfold_joins_rejected_total 1\n") {
        assert!(Instant::now() < end, "{}", get(at, "/metrics").body);
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn metrics_and_status_are_those_of_the_run() {
    let (master, at) = running(local());
    let first = join(&master, "a\"<b>\\");
    let second = certificates::admit(&[&first], || join(&master, "second"));
    thread::scope(|scope| {
        for peer in [&first, &second] {
            scope.spawn(|| {
                let mut data = [1.0_f32; 1000];
                for _ in 0..5 {
                    peer.all_reduce(&mut data, ringfold::AllReduce::sum()).unwrap();
                }
            });
        }
    });
    let status = get(at, "/api/status").json();
    assert_eq!(status["peers"][0]["name"], "a\"<b>\\");
    assert_eq!(status["throughput"]["operations_total"], 5);
    assert_eq!(
        status,
        serde_json::to_value(serde_json::from_value::<ringfold::Status>(status.clone()).unwrap()).unwrap()
    );
    let text = get(at, "/metrics").body;
    for line in [
        "ringfold_peers{membership=\"member\"} 2",
        "ringfold_operations_total{outcome=\"committed\"} 5",
        "ringfold_operation_bytes_total 20000",
        "ringfold_step_seconds_count 4",
        "ringfold_step_seconds_bucket{le=\"+Inf\"} 4",
        "ringfold_joins_total 2",
        "ringfold_departures_total{reason=\"left\"} 0",
        "ringfold_http_responses_total{code=\"200\"} 1",
    ] {
        assert!(text.lines().any(|each| each == line), "{line} is not in:\n{text}");
    }
    assert!(!text.contains("<b>"), "peers must not be labels: {text}");
    check_format(&text);
    drop(second);
    let end = Instant::now() + TIMEOUT;
    while !get(at, "/metrics").body.contains("ringfold_departures_total{reason=\"left\"} 1") {
        assert!(Instant::now() < end, "the departure was not counted");
    }
}

/// Each family has a help text and a type, ahead of its samples, and all of its samples follow.
fn check_format(text: &str) {
    let mut families = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(help) = lines.next() {
        let name = help.strip_prefix("# HELP ").and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(name.starts_with("ringfold_") && !families.contains(&name), "{name}");
        families.push(name);
        let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")[..])).unwrap();
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, value) = sample.rsplit_once(' ').unwrap();
            assert!(series.starts_with(name) && value.parse::<f64>().unwrap().is_finite(), "{sample}");
        }
    }
    assert!(families.len() > 30, "{families:?}");
}

#[test]
fn several_requests_are_answered_in_order_on_one_connection() {
    let (_master, at) = running(local());
    let mut client = Client::connect(at);
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    // More than one turn takes, and the last one in two pieces.
    let many: String = (0..40).map(|i| one(if i % 2 == 0 { "/healthz" } else { "/api/status" })).collect();
    client.send(many.as_bytes());
    client.send(b"GET /nothing HT");
    for i in 0..40 {
        let answer = client.answer(true);
        assert_eq!((answer.status, answer.body == "ok\n"), (200, i % 2 == 0), "{i}");
    }
    client.send(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(client.answer(true).status, 404);
    assert!(client.is_closed());
    // A client that ends its side at once gets its answer too.
    let mut client = Client::connect(at);
    client.send(one("/api/status").as_bytes());
    client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.answer(true).status, 200);
    assert!(client.is_closed());
}

#[test]
fn invalid_requests_are_refused_in_words_and_the_connection_is_closed() {
    let (_master, at) = running(local());
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(9000));
    for (request, status) in [
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("POST /api/drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n", 413),
        ("POST /api/drain HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (&long, 431),
    ] {
        let mut client = Client::connect(at);
        client.send(request.as_bytes());
        let answer = client.answer(true);
        assert_eq!(answer.status, status, "{request:?}");
        assert!(answer.json()["error"].is_string() && client.is_closed(), "{request:?}");
    }
    assert_eq!(get(at, "/healthz").status, 200);
}

#[test]
fn commands_need_the_admin_token_and_are_carried_out() {
    let (master, at) = running(local().admin_token("the boss of it all"));
    let (on, off) = (json!({"on": true}), json!({"on": false}));
    assert_eq!(post(at, "/api/drain", "", &on).status, 401);
    assert_eq!(post(at, "/api/drain", "the boss of it al", &on).status, 403);
    assert!(!master.status().unwrap().run.draining);
    let token = "the boss of it all";
    let answer = post(at, "/api/drain", token, &on);
    assert_eq!((answer.status, answer.json()["done"].is_string()), (200, true));
    assert!(master.status().unwrap().run.draining);
    assert_eq!(post(at, "/api/drain", token, &off).status, 200);
    for wrong in [json!({}), json!({"on": 1}), json!({"on": true, "x": 1})] {
        let answer = post(at, "/api/drain", token, &wrong);
        assert!(
            answer.status == 400 && answer.json()["error"].as_str().unwrap().starts_with("invalid request")
        );
    }
    let peer = join(&master, "one");
    let answer = post(at, "/api/evict", token, &json!({"peer": "other"}));
    assert!(answer.status == 409 && answer.json()["error"].as_str().unwrap().contains("other"));
    assert_eq!(post(at, "/api/evict", "", &json!({"peer": "one"})).status, 401);
    assert_eq!(post(at, "/api/evict", token, &json!({"peer": "one", "reason": "too slow"})).status, 200);
    let error = peer.update_topology().unwrap_err().to_string();
    assert!(error.contains("too slow"), "{error}");
    let metrics = get(at, "/metrics").body;
    assert!(metrics.contains("ringfold_departures_total{reason=\"evicted\"} 1"), "{metrics}");
    let cross = format!(
        "POST /api/drain HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\nOrigin: http://evil.example\r\n\
         Content-Type: application/json\r\nContent-Length: 12\r\n\r\n{{\"on\": true}}"
    );
    assert_eq!(ask(at, &cross).status, 403);
}

#[test]
fn without_an_admin_token_nobody_may_command() {
    let (_master, at) = running(local());
    let answer = post(at, "/api/drain", "guess", &json!({"on": true}));
    assert_eq!(answer.status, 403);
    assert!(answer.json()["error"].as_str().unwrap().contains("--admin-token-file"), "{}", answer.body);
}

#[test]
fn a_token_for_readers_hides_the_run_but_not_the_health() {
    let (_master, at) = running(local().http_token("for readers").admin_token("for operators"));
    for path in ["/api/status", "/metrics", "/api/events"] {
        assert_eq!(get(at, path).status, 401, "{path}");
        assert_eq!(get_with(at, path, "Authorization: Bearer other\r\n").status, 401, "{path}");
    }
    for token in ["for readers", "for operators"] {
        let header = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(get_with(at, "/api/status", &header).status, 200);
        assert_eq!(get_with(at, "/metrics", &header).status, 200);
    }
    assert_eq!(post(at, "/api/drain", "for readers", &json!({"on": true})).status, 403);
    assert_eq!((get(at, "/").status, get(at, "/healthz").status), (200, 200));
    assert_eq!(get(at, "/readyz").body, "ready\n");
    let session = get(at, "/api/session").json();
    assert_eq!(session, json!({"role": "none", "has_admin_token": true, "has_read_token": true}));
}

#[test]
fn a_stream_has_the_whole_status_first_then_what_is_new_and_changes_of_members_at_once() {
    let (master, at) = running(local());
    let mut client = Client::connect(at);
    client.send(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.answer(false);
    assert!(head.status == 200 && head.has("text/event-stream"), "{}", head.head);
    let (kind, first) = client.message();
    assert_eq!((kind.as_str(), first["peers"].as_array().unwrap().len()), ("status", 0));
    // Messages without a change come every two seconds.
    let begun = Instant::now();
    assert_eq!(client.message().0, "update");
    let peer = join(&master, "one");
    let joined = Instant::now();
    let mut texts = Vec::new();
    let seen = loop {
        let (kind, update) = client.message();
        assert_eq!(kind, "update");
        let new = update["events"].as_array().unwrap().clone();
        texts.extend(new.iter().map(|event| event["text"].as_str().unwrap().to_owned()));
        if update["peers"].as_array().unwrap().iter().any(|peer| peer["membership"] == "member") {
            break Instant::now();
        }
    };
    assert!(seen - joined < Duration::from_millis(1000), "{:?}", seen - joined);
    assert!(begun.elapsed() < TIMEOUT);
    drop(peer);
    while !client.message().1["peers"].as_array().unwrap().is_empty() {}
    // Every event comes once, in order.
    let all: Vec<_> = master.status().unwrap().events.into_iter().map(|event| event.text).collect();
    assert!(texts.len() >= 2 && all.starts_with(&texts), "{texts:?} {all:?}");
    // A new reader gets all of them at once.
    let mut second = Client::connect(at);
    second.send(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    second.answer(false);
    let (kind, status) = second.message();
    assert_eq!((kind.as_str(), status["events"].as_array().unwrap().len()), ("status", all.len()));
}

#[test]
fn readers_that_do_not_read_do_not_delay_others() {
    let (master, at) = running(local());
    let mut idle: Vec<_> = (0..20).map(|_| Client::connect(at)).collect();
    for client in &mut idle {
        client.send(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        // Far more answers than the buffers of the system hold.
        client.send("GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100).as_bytes());
    }
    let _peer = join(&master, "one");
    for _ in 0..10 {
        let begun = Instant::now();
        assert_eq!(get(at, "/api/status").status, 200);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[test]
fn too_many_connections_of_one_address_give_way_to_new_ones() {
    let (_master, at) = running(local());
    let mut idle: Vec<_> = (0..300).map(|_| Client::connect(at)).collect();
    // Half a request: it has begun.
    for client in idle.iter_mut().skip(200) {
        let _ = client.0.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: ");
    }
    for _ in 0..20 {
        assert_eq!(get(at, "/healthz").status, 200);
    }
    let metrics = get(at, "/metrics").body;
    let open = metrics.lines().find_map(|line| line.strip_prefix("ringfold_http_connections ")).unwrap();
    assert!(open.parse::<usize>().unwrap() <= 256, "{open}");
    assert!(idle[0].is_closed());
}

#[test]
fn a_page_whose_name_resolves_to_this_host_reads_nothing() {
    let (_master, at) = running(local().setting("http_hosts", "head.lab"));
    let status_of = |path: &str, host: &str| {
        ask(at, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    for path in ["/", "/api/status", "/api/events", "/metrics", "/healthz"] {
        let refused = status_of(path, &format!("rebound.example:{}", at.port()));
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.body.contains("RINGFOLD_HTTP_HOSTS"), "{}", refused.body);
    }
    assert_eq!(status_of("/api/status", "head.lab").status, 200);
}

#[test]
fn a_slow_request_is_ended() {
    if std::env::var_os("RINGFOLD_LONG").is_none() {
        return skip::report("a_slow_request_is_ended", "the long variant: takes 10 s");
    }
    let (_master, at) = running(local());
    let mut client = Client::connect(at);
    let begun = Instant::now();
    client.send(b"GET /api/st");
    while begun.elapsed() < Duration::from_secs(8) {
        thread::sleep(Duration::from_secs(2));
        client.send(b"a");
    }
    let answer = client.answer(true);
    assert!(answer.status == 408 && client.is_closed(), "{}", answer.body);
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_busy_port_fails_the_start_and_another_attempt_may_succeed() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = busy.local_addr().unwrap();
    let master = Master::builder().listen("127.0.0.1:0").http(at.to_string()).build();
    let error = master.run().unwrap_err().to_string();
    assert!(error.contains(&at.to_string()) && error.contains("listens there already"), "{error}");
    drop(busy);
    master.run().unwrap();
    assert_eq!(master.http_addresses(), [at]);
}

#[test]
fn short_tokens_are_refused_where_others_can_reach_the_port() {
    let builder = Master::builder().listen("127.0.0.1:0").http("0.0.0.0:0");
    let error = builder.clone().admin_token("short").build().run().unwrap_err().to_string();
    assert!(error.starts_with("invalid admin token of 5 bytes"), "{error}");
    builder.admin_token("0123456789abcdef").build().run().unwrap();
}
