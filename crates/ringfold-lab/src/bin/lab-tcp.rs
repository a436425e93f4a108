//! A TCP echo server and client, for tests of the network.
//!
//! `lab-tcp listen ADDRESS` prints `listening on ADDRESS` and echoes lines. `lab-tcp dial ADDRESS` connects, prints
//! `connected`, sends the lines of its standard input and prints the replies as `echo LINE`. Both end when their
//! standard input is closed.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["listen", address] => address.parse().map_err(|e| format!("{address}: {e}")).and_then(listen),
        ["dial", address] => address.parse().map_err(|e| format!("{address}: {e}")).and_then(dial),
        _ => Err("usage: lab-tcp listen|dial ADDRESS:PORT".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("failed {why}");
            ExitCode::FAILURE
        }
    }
}

fn listen(address: SocketAddr) -> Result<(), String> {
    let listener = TcpListener::bind(address).map_err(|e| e.to_string())?;
    println!("listening on {}", listener.local_addr().map_err(|e| e.to_string())?);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || echo(connection));
        }
    });
    // The test's end closes this.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

fn echo(mut connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = match connection.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) => return println!("lost {error}"),
        };
        // The only evidence that a path is open in this direction, if the other is cut.
        println!("got {}", String::from_utf8_lossy(&bytes[..count.min(64)]).trim());
        if connection.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
}

fn dial(address: SocketAddr) -> Result<(), String> {
    let mut connection = TcpStream::connect_timeout(&address, DIAL_TIMEOUT).map_err(|e| e.to_string())?;
    connection.set_nodelay(true).map_err(|e| e.to_string())?;
    println!("connected");
    let reader = BufReader::new(connection.try_clone().map_err(|e| e.to_string())?);
    thread::spawn(move || {
        for line in reader.lines() {
            match line {
                Ok(line) => println!("echo {}", &line[..line.len().min(64)]),
                Err(error) => return println!("lost {error}"),
            }
        }
        println!("lost: closed");
    });
    for line in std::io::stdin().lines() {
        let line = line.map_err(|e| e.to_string())?;
        connection.write_all(format!("{line}\n").as_bytes()).map_err(|e| e.to_string())?;
    }
    Ok(())
}
