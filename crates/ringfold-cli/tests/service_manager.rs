//! Tests of what masters and relays tell a service manager.

use crate::process::{DEADLINE, Process, RINGFOLD, command};
use rustix::process::Signal;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The next message that begins with this, which is not one of the watchdog unless it is asked for.
fn next(socket: &UnixDatagram, begin: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let size = socket.recv(&mut buffer).unwrap();
        let text = str::from_utf8(&buffer[..size]).unwrap();
        if text.starts_with(begin) {
            return text.to_owned();
        }
        assert_eq!(text, "WATCHDOG=1");
    }
}

#[test]
fn a_master_and_a_relay_say_when_they_are_ready_well_and_stopping() {
    let id = std::process::id();
    let path = std::env::temp_dir().join(format!("ringfold-notify-{id}"));
    let hidden = format!("ringfold-notify-{id}");
    let sockets = [
        (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
        (
            format!("@{hidden}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
        ),
    ];
    for (name, socket) in sockets {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        for kind in ["master", "relay"] {
            let mut started = command(RINGFOLD, &[kind, "--listen", "127.0.0.1:0"]);
            started.env("NOTIFY_SOCKET", &name).env("WATCHDOG_USEC", "400000").env_remove("WATCHDOG_PID");
            let mut process = Process::spawn(&mut started);
            let line = process.line_with(" listening on ");
            assert_eq!(next(&socket, "READY=1"), format!("READY=1\nSTATUS={line}"));
            if kind == "master" {
                for _ in 0..3 {
                    next(&socket, "WATCHDOG=1");
                }
            }
            process.signal(Signal::TERM);
            assert_eq!(next(&socket, "STOPPING=1"), "STOPPING=1\nSTATUS=stopping");
            let (status, stderr) = process.end();
            assert_eq!(status.code(), Some(0), "{stderr}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_service_manager_that_is_not_there_or_not_meant_does_no_harm() {
    for (name, value) in [("NOTIFY_SOCKET", "/does/not/exist"), ("NOTIFY_SOCKET", "")] {
        let mut started = command(RINGFOLD, &["master", "--listen", "127.0.0.1:0"]);
        started.env(name, value).env("WATCHDOG_USEC", "1");
        let mut process = Process::spawn(&mut started);
        process.line_with(" listening on ");
        process.signal(Signal::TERM);
        let (status, stderr) = process.end();
        assert_eq!(status.code(), Some(0), "{stderr}");
        assert_eq!(stderr.contains("cannot notify the service manager"), !value.is_empty(), "{stderr}");
    }
}
