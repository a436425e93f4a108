//! Proxies and their channels, between two ports of one process; what is put is pushed by the host.

use ringfold_cuda::port::trigger::{MemoryId, SemaphoreId};
use ringfold_cuda::port::{
    CancelToken, Connection, Port, PortChannel, PortError, ProxyService, Put, RegisteredMemory, Registrable,
    Semaphore, SemaphoreFace, SemaphoreKind, SemaphoreOffer, Transport, TransportFlags, Wait, WordPlace,
};
use ringfold_fabric::shared_memory::{MappedMemory, SharedMemory};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 1 << 16;
const TRANSPORTS: [Transport; 2] = [Transport::Ethernet, Transport::SharedMemory];

/// One end: a port, what it connects with, and memory whose first half the other side writes.
struct Side {
    port: Port,
    semaphore: Semaphore,
    memory: RegisteredMemory,
    /// The other side's memory.
    remote: RegisteredMemory,
    /// The same memory as `memory`, to look at it.
    window: MappedMemory,
}

impl Side {
    /// A proxy of this side, and a channel through it.
    fn proxy(&self, fifo_size: usize) -> (ProxyService, PortChannel) {
        let proxy = ProxyService::new(Some(self.port.clone()), fifo_size).unwrap();
        let face = SemaphoreFace::new(&self.semaphore, SemaphoreKind::HostToDevice);
        let id = proxy.add_semaphore(face).unwrap();
        let target = proxy.add_memory(self.remote.clone()).unwrap();
        let source = proxy.add_memory(self.memory.clone()).unwrap();
        let channel = proxy.channel(id, target, source).unwrap();
        (proxy, channel)
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.window.read(at, &mut read);
        read
    }
}

/// Two ends of a connection.
fn pair(transport: Transport) -> [Side; 2] {
    let ports = ["one", "other"].map(|name| Port::open(name, Some([127, 0, 0, 1].into())).unwrap());
    let offers = [0, 1].map(|side: usize| ports[side].offer(transport, None).unwrap());
    let deadline = Instant::now() + LONG;
    let connections: Vec<Connection> = std::thread::scope(|scope| {
        let (ports, offers) = (&ports, &offers);
        let connect = |side: usize| {
            let theirs = offers[1 - side].record();
            ports[side].connect(&offers[side], &theirs, 1 - side as i32, deadline).unwrap()
        };
        let other = scope.spawn(move || connect(1));
        vec![connect(0), other.join().unwrap()]
    });
    let words = [0, 1].map(|side: usize| SemaphoreOffer::new(&connections[side], WordPlace::Host).unwrap());
    let memories = [0, 1].map(|side: usize| {
        let made = SharedMemory::create(BYTES).unwrap();
        let window = MappedMemory::open(&made.ticket().unwrap()).unwrap();
        let flags = TransportFlags::from(transport);
        (ports[side].register(Registrable::Shared(made), flags).unwrap(), window)
    });
    let records = [0, 1].map(|side: usize| memories[side].0.serialize());
    let mut side = 0;
    memories.map(|(memory, window)| {
        let this = Side {
            port: ports[side].clone(),
            semaphore: words[side].join(&words[1 - side].record()).unwrap(),
            memory,
            remote: ports[side].remote(&records[1 - side]).unwrap(),
            window,
        };
        side += 1;
        this
    })
}

fn put(offset: u64, bytes: u64) -> Put {
    Put { target_offset: offset, source_offset: BYTES as u64 / 2 + offset, bytes }
}

fn for_long() -> Wait<'static> {
    Wait::within(LONG)
}

#[test]
fn what_is_put_is_there_when_its_signal_is() {
    const ROUNDS: u8 = 200;
    for transport in TRANSPORTS {
        let sides = pair(transport);
        std::thread::scope(|scope| {
            for side in &sides {
                scope.spawn(move || {
                    let (proxy, channel) = side.proxy(16);
                    proxy.start().unwrap();
                    for round in 0..ROUNDS {
                        let bytes = 1 + 37 * usize::from(round);
                        side.window.write(BYTES / 2, &vec![round; bytes]);
                        if round % 2 == 0 {
                            channel.put(put(0, bytes as u64), for_long()).unwrap();
                            channel.signal(for_long()).unwrap();
                            channel.flush(for_long()).unwrap();
                        } else {
                            channel.put_with_signal_and_flush(put(0, bytes as u64), for_long()).unwrap();
                        }
                        channel.wait(for_long()).unwrap();
                        assert_eq!(side.read(0, bytes), vec![round; bytes], "round {round} over {transport}");
                        // The other side may write again when it hears that this one has read.
                        channel.signal(for_long()).unwrap();
                        channel.wait(for_long()).unwrap();
                    }
                    assert!(!channel.poll().unwrap());
                    proxy.stop().unwrap();
                });
            }
        });
    }
}

#[test]
fn stopping_does_first_what_was_pushed_and_starting_goes_on() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(64);
        let face = SemaphoreFace::new(&other.semaphore, SemaphoreKind::HostToHost);
        for round in 0..20_u8 {
            one.window.write(BYTES / 2, &[round; 64]);
            for at in 0..60 {
                channel.put_with_signal(put(at, 1), for_long()).unwrap();
            }
            // Started before or after it was pushed, stopped at once: all the same.
            proxy.start().unwrap();
            proxy.stop().unwrap();
            for _ in 0..60 {
                face.wait(for_long()).unwrap();
            }
            assert_eq!(other.read(0, 60), [round; 60]);
        }
        assert!(!face.poll().unwrap());
        assert!(proxy.stop().is_ok(), "it may be stopped again");
    }
}

#[test]
fn a_proxy_that_is_dropped_does_what_was_pushed() {
    let [one, other] = pair(Transport::SharedMemory);
    let (proxy, channel) = one.proxy(64);
    proxy.start().unwrap();
    for _ in 0..50 {
        channel.signal(for_long()).unwrap();
    }
    drop(proxy);
    let arrived = for_long().poll(|| (other.semaphore.signalled().unwrap() == 50).then_some(()));
    assert!(arrived.is_some());
    assert!(channel.flush(Wait::within(Duration::from_millis(50))).is_err(), "nobody takes it any more");
}

#[test]
fn a_put_out_of_bounds_gives_the_port_up_and_is_told_to_all_who_wait() {
    for transport in TRANSPORTS {
        let [one, _other] = pair(transport);
        let (proxy, channel) = one.proxy(8);
        proxy.start().unwrap();
        channel.put(put(BYTES as u64, 1), for_long()).unwrap();
        let waited = channel.wait(for_long()).unwrap_err();
        assert_eq!(waited.kind(), "aborted");
        let why = one.port.failure().unwrap();
        let stopped = proxy.stop().unwrap_err();
        assert_eq!(stopped.kind(), "argument");
        assert!(why.contains(&stopped.to_string()), "{why}, {stopped}");
        assert!(channel.signal(for_long()).is_err());
        assert!(channel.flush(for_long()).is_err());
    }
}

#[test]
fn a_number_that_stands_for_nothing_is_refused() {
    let [one, _other] = pair(Transport::SharedMemory);
    let (proxy, _channel) = one.proxy(8);
    let refusal = |channel: Result<PortChannel, PortError>| channel.unwrap_err().to_string();
    let (semaphore, memory) = (SemaphoreId(0), MemoryId(0));
    assert!(refusal(proxy.channel(semaphore, memory, MemoryId(2))).contains("no memory 2"));
    assert!(refusal(proxy.channel(SemaphoreId(1), memory, memory)).contains("no semaphore 1"));
    assert!(refusal(proxy.base_channel(SemaphoreId(1023))).contains("no semaphore 1023"));
    let base = proxy.base_channel(semaphore).unwrap();
    assert!(base.put(put(0, 1), for_long()).is_err());
    assert_eq!(base.device_handle().unwrap().len(), 88);
    assert_eq!(proxy.channel(semaphore, memory, memory).unwrap().device_handle().unwrap().len(), 96);
}

#[test]
fn memories_and_semaphores_come_while_the_proxy_runs() {
    let [one, other] = pair(Transport::SharedMemory);
    let (proxy, channel) = one.proxy(8);
    proxy.start().unwrap();
    channel.signal(for_long()).unwrap();
    for _ in 0..100 {
        let face = SemaphoreFace::new(&one.semaphore, SemaphoreKind::HostToDevice);
        let id = proxy.add_semaphore(face).unwrap();
        let target = proxy.add_memory(one.remote.clone()).unwrap();
        let source = proxy.add_memory(one.memory.clone()).unwrap();
        let channel = proxy.channel(id, target, source).unwrap();
        channel.put_with_signal_and_flush(put(0, 8), for_long()).unwrap();
    }
    assert!(for_long().poll(|| (other.semaphore.signalled().unwrap() == 101).then_some(())).is_some());
    proxy.stop().unwrap();
}

#[test]
fn two_proxies_that_signal_through_one_semaphore_never_set_it_back() {
    const EACH: u64 = 2000;
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let proxies = [one.proxy(32), one.proxy(7)];
        std::thread::scope(|scope| {
            for (proxy, channel) in &proxies {
                proxy.start().unwrap();
                scope.spawn(|| (0..EACH).for_each(|_| channel.signal(for_long()).unwrap()));
            }
            let mut seen = 0;
            let all = for_long().poll(|| {
                let now = other.semaphore.signalled().unwrap();
                assert!(now >= seen);
                seen = now;
                (now == 2 * EACH).then_some(())
            });
            assert!(all.is_some(), "{seen}");
        });
        for (proxy, _) in &proxies {
            proxy.stop().unwrap();
        }
    }
}

#[test]
fn faces_of_one_semaphore_count_for_themselves() {
    TRANSPORTS.into_iter().for_each(faces_count_for_themselves);
}

fn faces_count_for_themselves(transport: Transport) {
    let [one, other] = pair(transport);
    let signals = SemaphoreFace::new(&one.semaphore, SemaphoreKind::HostToHost);
    let faces = [SemaphoreKind::HostToHost, SemaphoreKind::HostToDevice]
        .map(|kind| SemaphoreFace::new(&other.semaphore, kind));
    for _ in 0..3 {
        signals.signal().unwrap();
    }
    for face in &faces {
        for _ in 0..3 {
            face.wait(for_long()).unwrap();
        }
        let late = face.wait(Wait { checks_max: Some(1000), ..Wait::default() }).unwrap_err();
        assert_eq!((late.kind(), late.to_string().contains("rank 0")), ("timeout", true), "{late}");
        assert!(!face.poll().unwrap());
    }
    signals.signal().unwrap();
    let late_comer = SemaphoreFace::new(&other.semaphore, SemaphoreKind::HostToHost);
    for _ in 0..4 {
        late_comer.wait(for_long()).unwrap();
    }
    assert!(faces[0].poll().unwrap() && faces[1].poll().unwrap());
}

#[test]
fn kernels_own_their_semaphores() {
    let [one, _other] = pair(Transport::SharedMemory);
    let face = SemaphoreFace::new(&one.semaphore, SemaphoreKind::Memory);
    assert_eq!(face.signal().unwrap_err().kind(), "argument");
    let between_hosts = SemaphoreFace::new(&one.semaphore, SemaphoreKind::HostToHost);
    assert_eq!(between_hosts.host_handle().unwrap_err().kind(), "argument");
    assert_eq!(between_hosts.memory_handle().unwrap_err().kind(), "argument");
}

#[test]
fn an_abort_ends_a_wait_at_once_and_what_came_before_it_counts() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let signals = SemaphoreFace::new(&one.semaphore, SemaphoreKind::HostToHost);
        let waits = SemaphoreFace::new(&other.semaphore, SemaphoreKind::HostToHost);
        signals.signal().unwrap();
        std::thread::scope(|scope| {
            let aborter = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                other.port.abort("rank 7 was lost");
            });
            waits.wait(for_long()).unwrap();
            let begun = Instant::now();
            let end = waits.wait(for_long()).unwrap_err();
            assert!(end.to_string().contains("rank 7 was lost"), "{end}");
            assert!(begun.elapsed() < Duration::from_secs(5));
            aborter.join().unwrap();
        });
    }
}

#[test]
fn several_threads_wait_at_one_port_and_each_hears_its_own_signals() {
    const ROUNDS: u32 = 300;
    for transport in TRANSPORTS {
        let sides = pair(transport);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for side in &sides {
                // Two faces on each side; the first one answers, and the other one only listens.
                for answers in [true, false] {
                    let face = SemaphoreFace::new(&side.semaphore, SemaphoreKind::HostToHost);
                    scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            if answers {
                                face.signal().unwrap();
                            }
                            face.wait(for_long()).unwrap();
                        }
                        assert!(!face.poll().unwrap());
                    });
                }
            }
        });
        println!("{transport}: {:?} for a signal each way", begun.elapsed() / ROUNDS);
    }
}

#[test]
fn a_wait_ends_at_its_deadline_or_when_it_is_called_off_also_where_sockets_are_moved() {
    for transport in TRANSPORTS {
        let [_one, other] = pair(transport);
        let face = SemaphoreFace::new(&other.semaphore, SemaphoreKind::HostToHost);
        let begun = Instant::now();
        let late = face.wait(Wait::within(Duration::from_millis(120))).unwrap_err();
        assert_eq!((late.kind(), late.to_string().contains("rank 0")), ("timeout", true), "{late}");
        let called_off = face
            .wait(for_long().or_cancelled(Some(&CancelToken::new(Duration::from_millis(10), || true))))
            .unwrap_err();
        assert_eq!(called_off.kind(), "timeout");
        assert_eq!(face.wait(Wait::until(begun)).unwrap_err().kind(), "timeout");
        assert!(begun.elapsed() < LONG / 2 && begun.elapsed() >= Duration::from_millis(120));
    }
}

#[test]
fn what_is_meant_for_a_rank_that_has_left_goes_nowhere_and_harms_nobody() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(8);
        for _ in 0..3 {
            channel.put_with_signal(put(0, 8), for_long()).unwrap();
        }
        drop(other);
        let connection = one.semaphore.connection();
        assert!(for_long().poll(|| connection.is_over().then_some(())).is_some());
        proxy.start().unwrap();
        proxy.stop().unwrap();
        assert_eq!(one.port.failure(), None);
        assert_eq!(channel.wait(for_long()).unwrap_err().kind(), "lost");
        assert_eq!(channel.signal(for_long()).unwrap_err().kind(), "lost");
    }
}

#[test]
fn a_fifo_that_nobody_works_off_says_so() {
    let [one, _other] = pair(Transport::SharedMemory);
    let (_proxy, channel) = one.proxy(4);
    let shortly = || Wait::within(Duration::from_millis(50));
    for _ in 0..4 {
        channel.signal(shortly()).unwrap();
    }
    let refused = channel.signal(shortly()).unwrap_err();
    assert!(refused.to_string().contains("not running"), "{refused}");
}

#[test]
fn a_proxy_does_many_triggers_a_second() {
    const TRIGGERS: u32 = 200_000;
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(512);
        let count = if transport == Transport::Ethernet { TRIGGERS / 10 } else { TRIGGERS };
        proxy.start().unwrap();
        let begun = Instant::now();
        for _ in 0..count {
            channel.signal(for_long()).unwrap();
        }
        channel.flush(for_long()).unwrap();
        let took = begun.elapsed();
        let last = for_long().poll(|| (other.semaphore.signalled().unwrap() == count.into()).then_some(()));
        assert!(last.is_some());
        println!(
            "{transport}: {:.0} triggers a second, pushed by one thread",
            f64::from(count) / took.as_secs_f64()
        );
        proxy.stop().unwrap();
    }
}
