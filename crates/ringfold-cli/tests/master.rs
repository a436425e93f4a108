//! Tests of `ccoip_master` and `ringfold master`.

use crate::process::{CCOIP_MASTER, DEADLINE, Process, RINGFOLD, command, output};
use ringfold::Communicator;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

const LISTENING: &str = "master listening on ";

fn address(line: &str) -> SocketAddr {
    line.strip_prefix(LISTENING).unwrap().parse().unwrap()
}

#[test]
fn help_and_version_are_printed() {
    for program in [CCOIP_MASTER, RINGFOLD] {
        let version = output(program, &["--version"]);
        assert!(version.status.success());
        assert!(String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
        assert!(output(program, &["--help"]).status.success());
    }
    for (program, arguments) in [(CCOIP_MASTER, &["--help"][..]), (RINGFOLD, &["master", "--help"])] {
        let help = String::from_utf8(output(program, arguments).stdout).unwrap();
        assert!(help.contains("--listen") && help.contains("--token-file"), "{help}");
        assert!(!help.contains("stdin"), "{help}");
    }
    let help = String::from_utf8(output(RINGFOLD, &["--help"]).stdout).unwrap();
    assert!(help.contains("demo") && help.contains("master") && !help.contains("demo-peer"), "{help}");
}

#[test]
fn a_master_ends_with_0_on_sigint_and_sigterm_and_frees_its_port() {
    for signal in [Signal::INT, Signal::TERM] {
        for (program, arguments) in [(CCOIP_MASTER, &["--listen"][..]), (RINGFOLD, &["master", "--listen"])] {
            let mut master = Process::start(program, &[arguments, &["127.0.0.1:0"]].concat());
            let address = address(&master.line_with(LISTENING));
            // It also ends with clients connected.
            let _client = TcpStream::connect(address).unwrap();
            master.signal(signal);
            let (status, stderr) = master.end();
            assert_eq!(status.code(), Some(0), "{stderr}");
            assert!(TcpListener::bind(address).is_ok());
        }
    }
}

#[test]
fn a_master_goes_on_without_a_reader_of_its_standard_output() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command(RINGFOLD, &["master", "--listen", "127.0.0.1:0"]);
    let mut child = command.env("NO_COLOR", "1").stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains(LISTENING));
    let address = line.as_ref().and_then(|line| line.rsplit(' ').next());
    let joined = address.map(|address| Communicator::builder(address).build().unwrap().connect());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.is_some_and(|line| line.contains("cannot write to standard output")));
    joined.unwrap().unwrap();
}

#[test]
fn strangers_do_not_overwrite_the_events_in_a_flight_recorder() {
    let scratch = std::env::temp_dir().join(format!("ringfold-strangers-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let mut command = command(RINGFOLD, &["master", "--listen", "127.0.0.1:0"]);
    command.env("RINGFOLD_FLIGHT_DIR", &scratch).env("RINGFOLD_FLIGHT_BYTES", (64 << 10).to_string());
    let mut master = Process::spawn(&mut command);
    let address = address(&master.line_with(LISTENING));
    let peer = Communicator::builder(address.to_string()).name("penelope").build().unwrap();
    peer.connect().unwrap();
    // A line of each would fill the file several times.
    for _ in 0..1000 {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&[7; 64]).unwrap();
        // The end may be a reset.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    master.signal(Signal::TERM);
    let (_, stderr) = master.end();
    let refused = stderr.lines().filter(|line| line.contains("rejected connection from 127.0.0.1")).count();
    assert_eq!(refused, 4, "{stderr}");
    let file = scratch.read_dir().unwrap().next().unwrap().unwrap().path();
    let recorded = String::from_utf8(std::fs::read(file).unwrap()).unwrap();
    assert!(recorded.contains("penelope") && recorded.contains("rejected connection"), "{recorded}");
    std::fs::remove_dir_all(&scratch).unwrap();
}

#[test]
fn a_master_listens_on_all_given_addresses() {
    let master = Process::start(CCOIP_MASTER, &["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"]);
    let line = master.line_with(LISTENING);
    let addresses: Vec<SocketAddr> =
        line.strip_prefix(LISTENING).unwrap().split(", ").map(|text| text.parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{line}");
    for address in addresses {
        TcpStream::connect(address).unwrap();
    }
}

#[test]
fn a_busy_port_is_named_and_ends_the_master_with_1() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    for (program, arguments) in [(CCOIP_MASTER, &["--listen"][..]), (RINGFOLD, &["master", "--listen"])] {
        let output = output(program, &[arguments, &[&address]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&address), "{stderr}");
        assert!(stderr.contains("listens there already"), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_unreadable_token_file_ends_the_master_before_it_listens() {
    let output = output(CCOIP_MASTER, &["--listen", "127.0.0.1:0", "--token-file", "/does/not/exist"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/does/not/exist"));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_join_with_a_wrong_token_is_logged_with_its_address_and_the_reason() {
    let token = std::env::temp_dir().join(format!("ringfold-master-token-{}", std::process::id()));
    std::fs::write(&token, "sesame").unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--token-file", token.to_str().unwrap()];
    let mut master = Process::start(CCOIP_MASTER, &arguments);
    let address = address(&master.line_with(LISTENING));
    std::fs::remove_file(&token).unwrap();
    // A client that sends nothing is not logged.
    drop(TcpStream::connect(address).unwrap());
    let peer = Communicator::builder(address.to_string()).token("open").build().unwrap();
    peer.connect().expect_err("the token is wrong");
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let rejections: Vec<_> = stderr.lines().filter(|line| line.contains("rejected connection")).collect();
    assert_eq!(rejections.len(), 1, "{stderr}");
    let line = rejections[0];
    assert!(line.contains("WARN") && line.contains("from 127.0.0.1:") && line.contains("token"), "{line}");
}

#[test]
fn a_public_master_without_a_token_warns_unless_the_log_level_is_error() {
    for (program, command) in [(CCOIP_MASTER, &[][..]), (RINGFOLD, &["master"])] {
        for (level, warns) in [(&[][..], true), (&["--log", "error"], false)] {
            let mut master = Process::start(program, &[command, &["--listen", "0.0.0.0:0"], level].concat());
            master.line_with(LISTENING);
            master.signal(Signal::TERM);
            let (status, stderr) = master.end();
            assert_eq!(status.code(), Some(0), "{stderr}");
            assert_eq!(stderr.contains("WARN"), warns, "{stderr}");
        }
    }
}

#[test]
fn a_master_serves_http_where_it_says_and_frees_that_port_too() {
    let token = std::env::temp_dir().join(format!("ringfold-admin-token-{}", std::process::id()));
    std::fs::write(&token, "sesame").unwrap();
    let http = ["--listen", "127.0.0.1:0", "--http", "0", "--admin-token-file", token.to_str().unwrap()];
    let mut master = Process::start(RINGFOLD, &[&["master"], &http[..]].concat());
    master.line_with(LISTENING);
    let line = master.line_with("http listening on ");
    let address: SocketAddr = line.strip_prefix("http listening on ").unwrap().parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client.write_all(b"GET /api/session HTTP/1.0\r\nAuthorization: Bearer sesame\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"admin\""), "{answer}");
    std::fs::remove_file(&token).unwrap();
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(TcpListener::bind(address).is_ok());
}

#[test]
fn the_first_of_a_list_of_one_may_say_so() {
    let arguments = ["master", "--listen", "127.0.0.1:0", "--this-master", "1"];
    let mut master =
        Process::spawn(command(RINGFOLD, &arguments).env("RINGFOLD_MASTERS", "a-service.example:48148"));
    master.line_with(LISTENING);
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
}
