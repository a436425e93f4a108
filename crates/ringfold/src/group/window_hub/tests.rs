use super::*;
use core::time::Duration;
use ringfold_fabric::channel::ChannelId;
use ringfold_fabric::memory::{Memory, View};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;

const LONG: Duration = Duration::from_secs(30);

/// A hub with a connection to rank 1, and the other end of that.
fn connected() -> (Arc<WindowHub>, Endpoint, Connection) {
    let hub = Arc::new(WindowHub::new(Arc::new(Poller::new().unwrap())));
    let other = Endpoint::new("other").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let their = other.connect("hub", vec![listener.accept().unwrap().0]).unwrap();
    hub.with_endpoint("hub", |endpoint, connections| {
        connections.insert(Rank(1), endpoint.connect("other", vec![dialled])?);
        Ok(())
    })
    .unwrap();
    (hub, other, their)
}

#[test]
fn windows_send_their_last_bytes_although_links_take_the_whole_time() {
    const BYTES: usize = 32 << 20;
    let (hub, other, their) = connected();
    let target = other.register(Memory::zeroed(BYTES)).unwrap();
    let puts = hub.connection(Rank(1)).unwrap().channel(ChannelId(7));
    puts.put(View::from(vec![5; BYTES]).into(), target.handle().at(0)).unwrap();
    puts.signal().unwrap();
    drop(puts);
    let heard = std::thread::spawn(move || their.channel(ChannelId(7)).wait(Instant::now() + LONG));
    let deadline = Instant::now() + LONG;
    // The links end when the bytes have arrived, or at the deadline.
    hub.close(deadline, || {
        while !heard.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    heard.join().unwrap().unwrap();
    assert!(Instant::now() < deadline, "the windows waited for the links");
}

#[test]
fn a_group_that_fails_does_not_wait_for_the_lock_of_its_connections() {
    let (hub, _other, their) = connected();
    let (enter, entered) = channel();
    let waiting = hub.clone();
    let waiter = std::thread::spawn(move || {
        let began = Instant::now();
        let connection = waiting.connection(Rank(1)).unwrap();
        // The condition is checked under the lock of the connections.
        let is_told = || {
            enter.send(()).unwrap_or_default();
            while waiting.ended().is_none() && began.elapsed() < LONG / 2 {
                std::thread::yield_now();
            }
            true
        };
        connection.wait_for(Instant::now() + LONG, is_told).unwrap();
        began.elapsed()
    });
    entered.recv_timeout(LONG).unwrap();
    let callbacks = hub.fail(&Cause::EpochEnded);
    assert!(waiter.join().unwrap() < LONG / 2, "the group waited for its connections");
    callbacks.into_iter().for_each(|run| run());
    let failed = their.channel(ChannelId(0)).wait(Instant::now() + LONG).unwrap_err();
    assert!(failed.to_string().contains("the group has failed"), "{failed}");
}
