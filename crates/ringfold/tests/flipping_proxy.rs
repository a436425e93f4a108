//! A TCP proxy that flips a bit of a payload, as a faulty switch does.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Every byte of every payload in tests with a proxy.
pub const FILL: u8 = 0x5a;

/// Forwards connections to `target`, and flips one bit of a payload when it is armed.
pub fn proxy(target: SocketAddr, armed: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for incoming in listener.incoming().map_while(Result::ok) {
            let Ok(outgoing) = TcpStream::connect(target) else { continue };
            let (from, to) = (incoming.try_clone().unwrap(), outgoing.try_clone().unwrap());
            for (from, to) in [(from, outgoing), (to, incoming)] {
                let armed = Arc::clone(&armed);
                thread::spawn(move || forward(from, to, &armed));
            }
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, armed: &AtomicBool) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let read = &mut bytes[..count];
        // No header has so many equal bytes.
        let payload = read.windows(64).position(|window| window.iter().all(|byte| *byte == FILL));
        if let Some(at) = payload.filter(|_| armed.swap(false, Ordering::SeqCst)) {
            read[at + 32] ^= 1;
        }
        if to.write_all(read).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
