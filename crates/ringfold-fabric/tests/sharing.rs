//! Peers of one host agree on memory when they make a link, or on nothing but the stream.

use crate::node;
use crate::node::{KEY, LONG, Node, assert_one_link, both_up, dial, drive, epoch, two};
use crate::tcp_queues::await_read;
use ringfold_fabric::dialer::Credentials;
use ringfold_fabric::limits;
use ringfold_fabric::random;
use ringfold_proto::handshake::{AcceptorHandshake, DialTarget, Identity, Secret};
use ringfold_proto::hello::{Hello, Purpose};
use ringfold_proto::id::{PeerId, RunId};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// The host of peers that share memory.
const HOST: u64 = 9;

/// Links two nodes, and says whether both ends think that the link goes through memory.
fn link(a: &mut Node, b: &mut Node) -> (bool, bool) {
    let (of_a, of_b) = (a.member(a.far_address()), b.member(b.far_address()));
    a.connect_to(of_b, epoch(1));
    b.connect_to(of_a, epoch(1));
    drive(&mut [a, b], both_up);
    assert_one_link(a, b, 1);
    (a.up[0].is_shared(), b.up[0].is_shared())
}

#[test]
fn peers_of_one_host_share_memory() {
    let (a, b) = two(4);
    let (mut a, mut b) = (a.sharing(HOST), b.sharing(HOST));
    assert_eq!(link(&mut a, &mut b), (true, true));
    assert_eq!(a.up[0].tokens().count(), 1, "one stream is enough for a bell");
}

#[test]
fn whoever_does_not_share_is_talked_to_over_the_network() {
    let (a, b) = two(1);
    let (mut a, mut b) = (a.sharing(HOST), b);
    assert_eq!(link(&mut a, &mut b), (false, false), "it says that it is on another host");
    let (a, b) = two(1);
    let (mut a, mut b) = (a.sharing(HOST), b);
    b.host = HOST;
    assert_eq!(link(&mut a, &mut b), (false, false), "it declines what is offered");
    let (a, b) = two(1);
    let (mut a, mut b) = (a, b.sharing(HOST));
    a.host = HOST;
    assert_eq!(link(&mut a, &mut b), (false, false), "it does not offer anything");
}

#[test]
fn peers_of_different_hosts_do_not_try() {
    let (a, b) = two(3);
    let (mut a, mut b) = (a.sharing(HOST), b.sharing(HOST + 1));
    assert_eq!(link(&mut a, &mut b), (false, false));
    assert_eq!(a.up[0].tokens().count(), 3);
}

/// Comes to a node as peer 1 would, with memory that nobody can open.
#[test]
fn memory_that_cant_be_opened_is_declined_and_the_stream_is_the_link() {
    let mut b = two(1).1.sharing(HOST);
    let mut of_a = b.member(b.address());
    of_a.peer = PeerId(1);
    b.connect_to(of_a, epoch(1));
    let (at, to) = (b.address(), b.peer);
    let offering = std::thread::spawn(move || {
        let credentials = Credentials {
            identity: Identity::new(PeerId(1), RunId(0)),
            target: DialTarget::member(Purpose::Data, epoch(1), to),
            secret: Secret::epoch_key(&KEY),
        };
        let stream = dial(&[at], LONG, &credentials).unwrap();
        // The head of the only stream of a link, with the flag that an offer follows; and no ticket at all.
        let head = [[7; 8].as_slice(), &[0, 0, 1, 0, 1, 0, 0, 0], &[0x77; 40]].concat();
        (&stream).write_all(&head[..20]).unwrap();
        // The rest comes when the node has read the first part.
        await_read(at.port());
        (&stream).write_all(&head[20..]).unwrap();
        let mut answer = [9];
        stream.set_read_timeout(Some(LONG)).unwrap();
        (&stream).read_exact(&mut answer).unwrap();
        (answer, stream)
    });
    drive(&mut [&mut b], |nodes| !nodes[0].up.is_empty());
    assert_eq!(offering.join().unwrap().0, [0]);
    assert!(!b.up[0].is_shared());
}

#[test]
fn an_offer_that_is_not_answered_ends_in_time() {
    let mut a = Node::new(1, 1, limits::HANDSHAKE_MAX + Duration::from_secs(1)).sharing(HOST);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let welcoming = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut acceptor =
            AcceptorHandshake::new(Identity::new(PeerId(2), RunId(0)), random::nonce().unwrap());
        let secrets = |_: &Hello| Ok(Secret::epoch_key(&KEY));
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut block = [0];
        loop {
            stream.read_exact(&mut block).unwrap();
            let established = acceptor.handle_bytes(&mut &block[..], &secrets).unwrap();
            stream.write_all(&acceptor.poll_output()).unwrap();
            if established.is_some() {
                break;
            }
        }
        let mut head = [0; 56];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[12], 1, "memory is offered");
        (listener, stream)
    });
    let mut of_b = a.member(at);
    of_b.peer = PeerId(2);
    a.connect_to(of_b, epoch(1));
    drive(&mut [&mut a], |_| welcoming.is_finished());
    let silent = welcoming.join().unwrap();
    a.ahead += limits::HANDSHAKE_MAX;
    node::idle(&mut [&mut a], Duration::from_millis(20));
    a.ahead += Duration::from_secs(2);
    drive(&mut [&mut a], |nodes| !nodes[0].failed.is_empty());
    assert!(a.failed[0].contains("took too long") || a.failed[0].contains("answer"), "{:?}", a.failed);
    drop(silent);
}
