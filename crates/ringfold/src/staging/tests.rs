//! Launches whose buffers are supplied later, with host memory: no device is needed.

use crate::all_reduce::HostBuffers;
use crate::engine::Engine;
use crate::{AllReduce, Cause, Communicator, DType, Error, Failure, Master};
use ringfold_fabric::memory::{Memory, View};
use ringfold_fabric::reactor::Drive as _;
use ringfold_proto::id::{CallId, Tag};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Two peers of one run, and its master.
fn pair() -> (Master, Communicator, Communicator) {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().unwrap();
    let address = master.addresses()[0].to_string();
    let peer = |name| Communicator::builder(&address).name(name).build().unwrap();
    let (one, other) = (peer("one"), peer("other"));
    one.connect().unwrap();
    thread::scope(|scope| {
        let joining = scope.spawn(|| other.connect());
        while one.attributes().group_world < 2 {
            one.update_topology().unwrap();
        }
        joining.join().unwrap().unwrap();
    });
    (master, one, other)
}

fn launch(engine: &Engine, tag: u64) -> Result<CallId, Error> {
    let descriptor = AllReduce::sum().descriptor(DType::U8, 4).unwrap();
    engine.with(|driver| driver.start(Tag(tag), descriptor, false, None))?
}

fn supply(engine: &Engine, call: CallId, bytes: Option<[u8; 4]>) {
    let buffers = |bytes: [u8; 4]| HostBuffers::OutOfPlace {
        source: View::from(bytes.to_vec()),
        target: Memory::zeroed(4),
    };
    engine.with(|driver| driver.supply(call, bytes.map(buffers))).unwrap();
}

fn sum(engine: &Engine, call: CallId) -> Vec<u8> {
    let ended = engine.wait(call);
    ended.result.unwrap();
    match ended.buffers {
        Some(HostBuffers::OutOfPlace { target, .. }) => target.as_slice().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Waits until an operation of the peer is in flight.
fn await_busy(engine: &Engine) {
    let end = Instant::now() + Duration::from_secs(20);
    while !engine.with(|driver| driver.is_busy()).unwrap() {
        assert!(Instant::now() < end, "timed out waiting for an operation");
        thread::sleep(Duration::from_millis(1));
    }
}

fn engine(peer: &Communicator) -> Arc<Engine> {
    peer.engine().unwrap()
}

#[test]
fn a_tag_is_in_flight_before_its_buffers_are_supplied() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 7).unwrap();
    assert_eq!(launch(&mine, 7), Err(Error::BadArgument("tag 7 is already in flight".into())));
    assert_eq!(
        one.all_reduce(&mut [1_u8], AllReduce::sum().tag(7)).unwrap_err(),
        launch(&mine, 7).unwrap_err()
    );
    assert_eq!(one.update_topology(), Err(Error::Failed(Failure::PendingOperations(1))));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let mut data = [10_u8, 20, 30, 40];
            other.all_reduce(&mut data, AllReduce::sum().tag(7)).map(|_| data)
        });
        await_busy(&engine(&other));
        // Nothing happens without the buffers.
        thread::sleep(Duration::from_millis(50));
        assert!(!mine.has_ended(call));
        supply(&mine, call, Some([1, 2, 3, 4]));
        assert_eq!(sum(&mine, call), [11, 22, 33, 44]);
        assert_eq!(theirs.join().unwrap(), Ok([11, 22, 33, 44]));
    });
}

#[test]
fn missing_buffers_abort_the_operation_for_all_and_the_next_one_runs() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    for supplied_at in [Duration::ZERO, Duration::from_millis(30)] {
        thread::scope(|scope| {
            let theirs = scope.spawn(|| other.all_reduce(&mut [9_u8; 4], AllReduce::sum()));
            let call = launch(&mine, 0).unwrap();
            // An operation that is decided before a peer calls is skipped there; its call would be the next operation.
            await_busy(&engine(&other));
            thread::sleep(supplied_at);
            supply(&mine, call, None);
            assert!(matches!(mine.wait(call).result, Err(Error::Failed(Failure::Aborted(_)))));
            assert!(matches!(theirs.join().unwrap(), Err(Error::Failed(Failure::Aborted(_)))));
        });
        thread::scope(|scope| {
            let theirs = scope.spawn(|| other.all_reduce(&mut [9_u8; 4], AllReduce::sum()));
            let call = launch(&mine, 0).unwrap();
            supply(&mine, call, Some([1; 4]));
            assert_eq!(sum(&mine, call), [10; 4]);
            theirs.join().unwrap().unwrap();
        });
    }
}

#[test]
fn an_operation_without_buffers_ends_when_a_peer_is_lost() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 0).unwrap();
    let began = Instant::now();
    other.leave();
    match mine.wait(call).result {
        Err(Error::Failed(Failure::Aborted(cause))) => {
            assert!(matches!(*cause, Cause::PeerLost { .. }), "{cause}")
        }
        ended => panic!("{ended:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    // Buffers that are supplied too late are released.
    supply(&mine, call, Some([1; 4]));
    assert_eq!(launch(&mine, 0), Err(Error::Failed(Failure::TooFewPeers)));
}

#[test]
fn leaving_ends_an_operation_without_buffers() {
    let (_master, one, _other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 0).unwrap();
    one.leave();
    assert_eq!(mine.wait(call).result.unwrap_err(), Error::Left);
    assert_eq!(mine.with(|driver| driver.supply(call, None)), Err(Error::Left));
}
