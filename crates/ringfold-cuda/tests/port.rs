//! Ports: registration, connection, failure and shutdown.

use ringfold_cuda::port::{
    Connection, Port, PortError, RegisteredMemory, Registrable, Transport, TransportFlags,
};
use ringfold_fabric::memory::Memory;
use ringfold_fabric::shared_memory::SharedMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// Generous for operations of milliseconds on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

fn late() -> Instant {
    Instant::now() + LONG
}

fn open(name: &str) -> Port {
    Port::open(name, Some("127.0.0.1".parse().unwrap())).unwrap()
}

/// Connects rank 0 and rank 1.
fn connect(transport: Transport, zero: &Port, one: &Port) -> (Connection, Connection) {
    let (from_zero, from_one) = (zero.offer(transport, None).unwrap(), one.offer(transport, None).unwrap());
    let to_one = zero.connect(&from_zero, &from_one.record(), 1, late()).unwrap();
    let to_zero = one.connect(&from_one, &from_zero.record(), 0, late()).unwrap();
    (to_one, to_zero)
}

fn host(port: &Port, bytes: usize) -> RegisteredMemory {
    let flags = TransportFlags::from(Transport::Ethernet) | Transport::SharedMemory.into();
    port.register(Registrable::Host(Memory::zeroed(bytes)), flags).unwrap()
}

fn read(memory: &RegisteredMemory) -> Vec<u8> {
    let start = core::ptr::with_exposed_provenance::<u8>(memory.data() as usize);
    // SAFETY: it is host memory and held; the tests wait for writes before they read.
    unsafe { core::slice::from_raw_parts(start, memory.size() as usize).to_vec() }
}

fn word(memory: &RegisteredMemory, offset: usize) -> u64 {
    let start = core::ptr::with_exposed_provenance_mut::<u8>(memory.data() as usize + offset);
    // SAFETY: as above; the offset is aligned.
    unsafe { AtomicU64::from_ptr(start.cast()) }.load(Ordering::Acquire)
}

fn await_word(memory: &RegisteredMemory, offset: usize, value: u64) {
    let end = late();
    while word(memory, offset) != value {
        assert!(Instant::now() < end, "the word did not arrive");
        std::thread::yield_now();
    }
}

const BY_HOST: [Transport; 2] = [Transport::Ethernet, Transport::SharedMemory];

#[test]
fn words_arrive_after_earlier_writes() {
    for transport in BY_HOST {
        let (zero, one) = (open("rank 0"), open("rank 1"));
        let (to_one, _to_zero) = connect(transport, &zero, &one);
        let source = Memory::from((0..100_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
        let source = zero.register(Registrable::Host(source), transport.into()).unwrap();
        let (target, bell) = (host(&one, 400_000), host(&one, 64));
        let (there, bell_there) =
            (zero.remote(&target.serialize()).unwrap(), zero.remote(&bell.serialize()).unwrap());
        for round in 1..=20 {
            to_one.write(&there, 8 * round, &source, 4 * round, 100_000).unwrap();
            to_one.update(&bell_there, 8, round).unwrap();
            await_word(&bell, 8, round);
            let (at, from) = (8 * round as usize, 4 * round as usize);
            assert_eq!(read(&target)[at..at + 100_000], read(&source)[from..from + 100_000]);
        }
        to_one.flush(late()).unwrap();
        assert_eq!((to_one.transport(), to_one.peer(), to_one.is_over()), (transport, 1, false));
    }
}

#[test]
fn a_flush_waits_for_arrival_without_calls_of_the_peer() {
    for transport in BY_HOST {
        let (zero, one) = (open("rank 0"), open("rank 1"));
        let (to_one, _to_zero) = connect(transport, &zero, &one);
        let (source, target) = (host(&zero, 1 << 20), host(&one, 16 << 20));
        let there = zero.remote(&target.serialize()).unwrap();
        let mut mine = 7_u64;
        for round in 0..16 {
            to_one.write(&there, round << 20, &source, 0, 1 << 20).unwrap();
            let address = (&raw mut mine).expose_provenance() as u64;
            // SAFETY: it is a local variable.
            unsafe { to_one.update_and_sync(&there, (round << 20) + 4096, address, round + 1) }.unwrap();
            assert_eq!(mine, round + 1);
            to_one.flush(late()).unwrap();
            assert_eq!(word(&target, ((round << 20) + 4096) as usize), round + 1);
        }
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    for transport in BY_HOST {
        let (zero, one) = (open("rank 0"), open("rank 1"));
        let (to_one, _to_zero) = connect(transport, &zero, &one);
        let (source, target) = (host(&zero, 64), host(&one, 64));
        let there = zero.remote(&target.serialize()).unwrap();
        let rejected = [
            to_one.write(&there, 60, &source, 0, 5),
            to_one.write(&there, 0, &source, 60, 5),
            to_one.write(&there, u64::MAX, &source, 0, 5),
            to_one.update(&there, 60, 1),
            to_one.update(&there, 4, 1),
        ];
        for rejected in rejected {
            assert!(matches!(rejected, Err(PortError::Argument(_))), "{rejected:?}");
        }
        let elsewhere =
            one.register(Registrable::Host(Memory::zeroed(64)), Transport::CudaIpc.into()).unwrap();
        let error = to_one.write(&elsewhere, 0, &source, 0, 1).unwrap_err();
        assert!(error.to_string().contains("is not registered for"), "{error}");
        to_one.write(&there, 64, &source, 64, 0).unwrap();
        for garbage in [vec![], vec![0; 10], vec![255; 500], target.serialize()[1..].to_vec()] {
            assert!(matches!(zero.remote(&garbage), Err(PortError::Argument(_))));
            let mine = zero.offer(transport, None).unwrap();
            assert!(matches!(zero.connect(&mine, &garbage, 1, late()), Err(PortError::Argument(_))));
        }
        assert!(to_one.check().is_ok());
    }
    let error = open("rank 0").offer(Transport::Ib(3), None).unwrap_err();
    assert!(error.kind() == "unsupported" && error.to_string().contains("IB3"), "{error}");
    let (zero, one) = (open("rank 0"), open("rank 1"));
    let mine = zero.offer(Transport::Ethernet, None).unwrap();
    let theirs = one.offer(Transport::SharedMemory, None).unwrap();
    let error = zero.connect(&mine, &theirs.record(), 1, late()).unwrap_err();
    assert!(error.to_string().contains("shared memory"), "{error}");
}

#[test]
fn registrations_may_share_an_allocation_and_keep_it_alive() {
    let whole = Arc::new(vec![0_u64; 1024]);
    let start = whole.as_ptr().expose_provenance();
    let part = |at: usize, bytes: usize| {
        let start = core::ptr::with_exposed_provenance_mut(start + at);
        // SAFETY: the keeper has the bytes. Bytes of two parts are written through one at a time.
        Registrable::Host(unsafe { Memory::kept(start, bytes, Box::new(whole.clone())) })
    };
    let (zero, one) = (open("rank 0"), open("rank 1"));
    let (to_one, to_zero) = connect(Transport::Ethernet, &zero, &one);
    let first = one.register(part(0, 4096), Transport::Ethernet.into()).unwrap();
    let inner = one.register(part(1024, 512), Transport::Ethernet.into()).unwrap();
    let behind = one.register(part(4096, 4096), Transport::Ethernet.into()).unwrap();
    assert_eq!(Arc::strong_count(&whole), 4);
    for (number, memory) in [&first, &inner, &behind].into_iter().enumerate() {
        let there = zero.remote(&memory.serialize()).unwrap();
        to_one.update(&there, 8, number as u64 + 1).unwrap();
    }
    to_one.flush(late()).unwrap();
    assert_eq!((whole[1], whole[129], whole[513]), (1, 2, 3));
    drop((first, inner, behind));
    drop((to_one, to_zero, zero, one));
    assert_eq!(Arc::strong_count(&whole), 1);
}

#[test]
fn a_record_resolves_to_the_same_memory_within_a_process() {
    let port = open("rank 0");
    let memory = port
        .register(Registrable::Shared(SharedMemory::create(4096).unwrap()), Transport::SharedMemory.into());
    let memory = memory.unwrap();
    let (record, address) = (memory.serialize(), memory.data());
    let again = open("rank 1").remote(&record).unwrap();
    assert_eq!((again.data(), again.size(), again.is_device()), (address, 4096, false));
    drop(memory);
    assert_eq!(read(&again), vec![0; 4096], "the second reference keeps the memory");
    drop(again);
    let error = port.remote(&record).unwrap_err();
    assert!(error.to_string().contains("no longer registered"), "{error}");
}

#[test]
fn a_rank_that_leaves_is_no_failure_and_its_writes_arrive() {
    for transport in BY_HOST {
        let (zero, one, two) = (open("rank 0"), open("rank 1"), open("rank 2"));
        let (to_one, to_zero) = connect(transport, &zero, &one);
        let (two_to_one, _one_to_two) = connect(transport, &two, &one);
        let (source, target) = (host(&zero, 8 << 20), host(&one, 8 << 20));
        let there = zero.remote(&target.serialize()).unwrap();
        to_one.write(&there, 0, &source, 0, 8 << 20).unwrap();
        to_one.update(&there, 0, 5).unwrap();
        let begun = Instant::now();
        drop((zero, to_one, source));
        assert!(begun.elapsed() < SOON);
        await_word(&target, 0, 5);
        let end = late();
        while !to_zero.is_over() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        let error = to_zero.check().unwrap_err();
        assert_eq!(error.to_string(), "rank 0 is lost: it has left");
        assert_eq!(one.failure(), None);
        let there = two.remote(&target.serialize()).unwrap();
        two_to_one.update(&there, 8, 6).unwrap();
        two_to_one.flush(late()).unwrap();
    }
}

#[test]
fn an_aborted_port_aborts_all_connected_ports() {
    for transport in BY_HOST {
        let (zero, one, two) = (open("rank 0"), open("rank 1"), open("rank 2"));
        let (to_one, _to_zero) = connect(transport, &zero, &one);
        let (two_to_one, _one_to_two) = connect(transport, &two, &one);
        two.abort("rank 2 has had enough");
        for port in [&two, &one, &zero] {
            let end = late();
            while port.failure().is_none() {
                assert!(Instant::now() < end, "{port:?}");
                std::thread::yield_now();
            }
            assert_eq!(port.failure().unwrap(), "rank 2 has had enough");
            assert!(port.abort_page().is_set());
        }
        for connection in [&to_one, &two_to_one] {
            let error = connection.flush(late()).unwrap_err();
            assert_eq!((error.kind(), connection.is_over()), ("aborted", true));
        }
        assert!(zero.offer(transport, None).is_err());
    }
}

#[test]
fn a_port_may_connect_with_itself() {
    for transport in BY_HOST {
        let port = open("rank 0");
        let memory = host(&port, 4096);
        let offer = port.offer(transport, None).unwrap();
        let alone = port.connect(&offer, &offer.record(), 0, late()).unwrap();
        alone.write(&memory, 100, &memory, 0, 50).unwrap();
        alone.update(&memory, 8, 9).unwrap();
        alone.flush(late()).unwrap();
        assert_eq!(word(&memory, 8), 9);
        let (one, other) = connect(transport, &port, &port);
        one.update(&memory, 16, 10).unwrap();
        one.flush(late()).unwrap();
        other.update(&memory, 24, 11).unwrap();
        other.flush(late()).unwrap();
        assert_eq!((word(&memory, 16), word(&memory, 24)), (10, 11));
    }
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    for transport in BY_HOST {
        for order in 0..6 {
            let (zero, one) = (open("rank 0"), open("rank 1"));
            let (to_one, to_zero) = connect(transport, &zero, &one);
            let (source, target) = (host(&zero, 1 << 20), host(&one, 1 << 20));
            let there = zero.remote(&target.serialize()).unwrap();
            to_one.write(&there, 0, &source, 0, 1 << 20).unwrap();
            let mut things: Vec<Box<dyn std::any::Any>> = vec![
                Box::new(zero),
                Box::new(to_one),
                Box::new(target),
                Box::new(source),
                Box::new(to_zero),
                Box::new(one),
            ];
            things.rotate_left(order);
            let begun = Instant::now();
            for thing in things {
                drop(thing);
            }
            assert!(begun.elapsed() < SOON, "{order}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_port_that_leaves_has_sent_all_and_is_no_failure() {
    for transport in BY_HOST {
        let (zero, one) = (open("rank 0"), open("rank 1"));
        let (to_one, to_zero) = connect(transport, &zero, &one);
        let (source, target) = (host(&zero, 32 << 20), host(&one, 32 << 20));
        let there = zero.remote(&target.serialize()).unwrap();
        to_one.write(&there, 0, &source, 0, 32 << 20).unwrap();
        to_one.update(&there, 0, 5).unwrap();
        zero.leave();
        await_word(&target, 0, 5);
        let end = late();
        while !to_zero.is_over() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        assert_eq!(to_zero.check().unwrap_err().to_string(), "rank 0 is lost: it has left");
        assert!(one.failure().is_none() && zero.failure().is_none());
        assert!(to_one.update(&there, 0, 6).is_err());
    }
}
