//! Entry points of the fuzz targets in `fuzz/`: decoders of what other ranks send, and of files.

use crate::TuningFile;
use crate::device_group::agreement;
use crate::device_group::hosts::PieceJob;
use crate::device_group::registrar::Message;
use crate::group::bootstrap::messages::{Join, Mapped, Reply};
use crate::group::bootstrap_listener::Announcement;
use crate::journal::{FlightLog, FlightRecord};
use crate::master::http::request::{Method, Request as HttpRequest};
use crate::transfer::wire::{Header, Request};
use crate::window::offer::WindowOffer;
use ringfold_proto::bounded::Bounded;
use ringfold_proto::frame::{ControlDecoder, encode_control};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The name of a target, and its function: passes bytes to decoders, encodes and decodes again what they accept, and
/// returns whether any accepted them.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// The targets.
pub const DECODERS: &[Decoder] = &[
    ("bootstrap", check_bootstrap),
    ("announcement", check_announcement),
    ("state_transfer", check_state_transfer),
    ("window_offer", check_window_offer),
    ("device_group", check_device_group),
    ("tuning_file", check_tuning_file),
    ("flight_file", check_flight_file),
    ("http_request", check_http_request),
];

fn check_bootstrap(bytes: &[u8]) -> bool {
    check_message::<Join>(bytes) | check_message::<Reply>(bytes) | check_message::<Mapped>(bytes)
}

/// Passes the first message of a stream.
fn check_message<T: Serialize + DeserializeOwned + Bounded>(bytes: &[u8]) -> bool {
    let decode = |bytes: &[u8]| ControlDecoder::<T>::default().next_message(&mut &bytes[..]);
    let Ok(Some(message)) = decode(bytes) else { return false };
    let frame = encode_control(&message).expect("a decoded message is within its limits");
    let again = decode(&frame).expect("an encoded message is valid").expect("it is complete");
    assert_eq!(encode_control(&again), Ok(frame));
    true
}

fn check_announcement(bytes: &[u8]) -> bool {
    let parse = |text: &str| text.parse::<Announcement>().ok();
    let Some(announcement) = core::str::from_utf8(bytes).ok().and_then(parse) else { return false };
    assert!(parse(&announcement.to_string()) == Some(announcement));
    true
}

fn check_state_transfer(bytes: &[u8]) -> bool {
    if let Some(header) = bytes.first_chunk().and_then(|bytes| Header::decode(*bytes).ok()) {
        assert_eq!(Header::decode(header.encode()).ok(), Some(header));
    }
    let Ok(Some(request)) = Request::read(&mut &bytes[..]) else { return false };
    let frame = request.encode().expect("a decoded request is within its limits");
    assert_eq!(Request::read(&mut &frame[..]).ok(), Some(Some(request)));
    true
}

fn check_window_offer(bytes: &[u8]) -> bool {
    let Some(offer) = bytes.first_chunk().and_then(WindowOffer::decode) else { return false };
    assert_eq!(WindowOffer::decode(&offer.encode()), Some(offer));
    true
}

fn check_device_group(bytes: &[u8]) -> bool {
    let message = core::str::from_utf8(bytes).ok().and_then(Message::decode);
    if let Some(message) = &message {
        // A long reason is truncated when it is encoded.
        let again = Message::decode(&message.encode()).expect("an encoded message is valid");
        assert_eq!(Message::decode(&again.encode()), Some(again));
    }
    let job = bytes.first_chunk().and_then(|word| PieceJob::decode(u64::from_le_bytes(*word)));
    if let Some(job) = job {
        assert_eq!(PieceJob::decode(job.encode()), Some(job));
    }
    let record = agreement::decode(bytes);
    if record.is_ok() {
        assert_eq!(agreement::decode(&agreement::encode(&record)), record);
    }
    message.is_some() || job.is_some() || record.is_ok()
}

fn check_tuning_file(bytes: &[u8]) -> bool {
    let parse = |text: &str| TuningFile::parse(text).ok();
    let Some(file) = core::str::from_utf8(bytes).ok().and_then(parse) else { return false };
    assert_eq!(parse(&file.format().expect("a tuning can be written")), Some(file));
    true
}

fn check_flight_file(bytes: &[u8]) -> bool {
    let FlightLog { header, records, .. } = FlightLog::parse(bytes);
    for record in &records {
        let line = serde_json::to_vec(&record.to_fields()).expect("a record can be written");
        assert_eq!(FlightRecord::parse(&line).as_ref(), Some(record));
    }
    header.is_some() || !records.is_empty()
}

fn check_http_request(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let Ok(Some(request)) = HttpRequest::take(&mut rest) else {
        assert_eq!(rest.len(), bytes.len(), "what is not accepted is not taken");
        return false;
    };
    assert!(rest.len() < bytes.len() && bytes.ends_with(rest));
    let encoded = encode_http_request(&request);
    let mut again = &encoded[..];
    assert_eq!(HttpRequest::take(&mut again), Ok(Some(request)));
    assert!(again.is_empty());
    true
}

/// A request with the same meaning.
fn encode_http_request(request: &HttpRequest) -> Vec<u8> {
    let method = match request.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
    };
    let connection = if request.keeps_alive { "keep-alive" } else { "close" };
    // Only an old version may lack a host.
    let version = if request.host.is_some() { 1 } else { 0 };
    let mut text = format!("{method} {} HTTP/1.{version}\r\nConnection: {connection}\r\n", request.path);
    let bearer = request.bearer.as_ref().map(|token| format!("Bearer {token}"));
    for (name, value) in [
        ("Host", &request.host),
        ("Origin", &request.origin),
        ("Sec-Fetch-Site", &request.fetch_site),
        ("Authorization", &bearer),
        ("Content-Type", &request.content_type),
    ] {
        text.extend(value.as_ref().map(|value| format!("{name}: {value}\r\n")));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n", request.body.len()));
    [text.as_bytes(), &request.body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::bootstrap::messages::ArenaOffer;
    use ringfold_fabric::segment::Ticket;
    use ringfold_fabric::shared_memory::FileTicket;
    use ringfold_fuzz::Seed;
    use ringfold_proto::dtype::DType;
    use ringfold_proto::epoch::{EpochDescription, Member};
    use ringfold_proto::id::{EpochId, PeerId, Rank};
    use ringfold_proto::reduce_op::ReduceOp;
    use ringfold_proto::tuning::{Algorithm, Tuning};

    fn bootstrap_seeds() -> impl Iterator<Item = Vec<u8>> {
        let member = Member {
            peer: PeerId(7),
            name: "host-1".into(),
            host: 3,
            site: 0,
            cores: Default::default(),
            addresses: vec!["192.0.2.1:4000".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap()],
        };
        let description = EpochDescription {
            id: EpochId::default(),
            members: [member.clone(), Member { peer: PeerId(8), ..member.clone() }].into(),
            ring: vec![Rank(1), Rank(0)],
            mesh: true,
            missing: vec![],
            network: None,
            resumed: vec![],
            tuning: Tuning::default(),
            key: [6; 32],
            relays: vec![],
        };
        let arena = ArenaOffer { ticket: vec![1; 40], slot_bytes: 4096, depth: 4 };
        let join = Join { group: "g".into(), rank: 1, world: 2, member, may_share: true, integrity: 3 };
        let replies = [
            Reply::Welcome { description: Box::new(description), arena: Some(arena) },
            Reply::Begin { shares: true },
            Reply::Rejected { why: "wrong group".into(), retryable: false },
            Reply::Joined,
        ];
        let replies = replies.map(|reply| encode_control(&reply).unwrap());
        [encode_control(&join).unwrap(), encode_control(&Mapped(true)).unwrap()].into_iter().chain(replies)
    }

    fn device_seeds() -> impl Iterator<Item = Vec<u8>> {
        let numbers = [77_u64, 0x7f00_0000_0200].iter().flat_map(|number| number.to_le_bytes());
        let sizes = [1_u64 << 21, 512, 4096].into_iter().flat_map(u64::to_le_bytes);
        let offer: Vec<u8> = numbers.chain([7; 80]).chain(sizes).collect();
        let hex: String = offer.iter().map(|byte| format!("{byte:02x}")).collect();
        let texts = [
            &format!("offer 1 2 {hex}"),
            "opened 1 2 ",
            "refused 1 2 no device",
            "forget 1 2 ",
            "forgotten 1 2 ",
        ];
        let job =
            PieceJob::decode(u64::from(ReduceOp::Sum as u8) << 35 | u64::from(DType::F32 as u8) << 30 | 256);
        let records = [job.unwrap().encode().to_le_bytes().to_vec(), agreement::encode(&Ok(vec![1, 2, 3]))];
        texts.map(|text| text.as_bytes().to_vec()).into_iter().chain(records)
    }

    const FLIGHT: &str = concat!(
        r#"{"flight":1,"version":"0.1.0","host":"a","boot":"b","pid":7,"program":"p","time":"2026-01-31T08:15:00.000000Z","monotonic_us":1}"#,
        "   \n",
        r#"{"time":"2026-01-31T08:15:00.000001Z","number":3,"monotonic_us":5,"level":"info","target":"ringfold::peer","source":"peer","name":"a:7","event":"op_ended","message":"x","epoch":"group 0 epoch 1@0001","tag":0,"seq":2,"duration_us":9}"#,
        "\n\"cut\":true}\n",
        r#"{"time":"2026-01-31T08:15:00.000002Z","number":2,"monotonic_us":5,"level":"warn","target":"ringfold","message":"y","list":[1,{"a":null}]}"#,
        "\n\0\0\0",
    );

    fn seeds() -> Vec<Seed> {
        let announcements =
            ["ringfold1:1a:2b:127.0.0.1:1,[2001:db8::7]:65535", "ringfold1:0:0:[fe80::1%2]:80\n"];
        let request =
            Request { key: "w".into(), dtype: DType::F32, count: 300, hash: 5, first_leaf: 1, leaves: 64 };
        let file = FileTicket { pid: 1, fd: 2, device: 3, inode: 4, offset: 5, bytes: 6 };
        let signals = Ticket { pid: 7, fd: 8, bytes: 9, nonce: [10; 16] };
        let offer = WindowOffer {
            number: 11,
            is_able: true,
            bytes: 12 << 40,
            file: Some(file),
            signals: Some(signals),
            about: vec![13; 20],
        };
        let bare = WindowOffer { file: None, signals: None, about: vec![], ..offer.clone() };
        let tuning = Tuning { chunk_bytes: 65536, forced: Some(Algorithm::OneShot), ..Tuning::default() };
        let limits = TuningFile { tuning, cuda_packet_bytes: [(2, 1 << 20), (16, 0)].into() };
        let tunings = [TuningFile::default(), limits].map(|file| file.format().unwrap().into_bytes());
        let named = |name: &'static str| move |bytes: Vec<u8>| (name, bytes);
        let announcements = announcements.map(|text| ("announcement", text.as_bytes().to_vec()));
        let mut all: Vec<Seed> = bootstrap_seeds().map(named("bootstrap")).chain(announcements).collect();
        all.push(("state_transfer", request.encode().unwrap()));
        all.extend([offer, bare].map(|offer| ("window_offer", offer.encode().to_vec())));
        all.extend(device_seeds().map(named("device_group")));
        all.extend(tunings.map(named("tuning_file")));
        all.push(("tuning_file", b"{\"chunk_bytes\": 4096}".to_vec()));
        all.push(("flight_file", FLIGHT.as_bytes().to_vec()));
        let requests = [
            "GET /api/status?x=1 HTTP/1.1\r\nHost: a:48180\r\nAuthorization: Bearer token\r\nSec-Fetch-Site: none\r\n\r\n",
            "HEAD / HTTP/1.0\r\n\r\n",
            "POST /api/drain HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: 11\r\n\r\n{\"on\":true}GET",
        ];
        all.extend(requests.map(|text| ("http_request", text.as_bytes().to_vec())));
        all
    }

    #[test]
    fn changed_inputs_of_the_corpus_are_survived() {
        ringfold_fuzz::test_decoders(DECODERS, &seeds());
    }
}
