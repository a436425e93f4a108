//! Proxies and channels between two ports of one process, with pushes from the host.

use crate::suite::blocked::Callers;
use ringfold_cuda::port::trigger::{MemoryId, SemaphoreId};
use ringfold_cuda::port::{
    CancelToken, Connection, Port, PortChannel, PortError, ProxyService, Put, RegisteredMemory, Registrable,
    Semaphore, SemaphoreCursor, SemaphoreKind, SemaphoreOffer, Transport, TransportFlags, Wait, WordLocation,
};
use ringfold_fabric::shared_memory::{MappedMemory, SharedMemory};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 1 << 16;
const TRANSPORTS: [Transport; 2] = [Transport::Ethernet, Transport::SharedMemory];

/// A port with a connection, and memory whose first half the peer writes.
struct TestPort {
    port: Port,
    semaphore: Semaphore,
    memory: RegisteredMemory,
    /// The peer's memory.
    remote: RegisteredMemory,
    /// A second mapping of `memory`, for checks.
    mapped: MappedMemory,
}

impl TestPort {
    /// Creates a proxy and a channel through it.
    fn proxy(&self, fifo_size: usize) -> (ProxyService, PortChannel) {
        let proxy = ProxyService::new(Some(self.port.clone()), fifo_size).unwrap();
        let cursor = SemaphoreCursor::new(&self.semaphore, SemaphoreKind::HostToDevice);
        let id = proxy.add_semaphore(cursor).unwrap();
        let target = proxy.add_memory(self.remote.clone()).unwrap();
        let source = proxy.add_memory(self.memory.clone()).unwrap();
        let channel = proxy.channel(id, target, source).unwrap();
        (proxy, channel)
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.mapped.read(at, &mut read);
        read
    }
}

/// Creates two connected ports.
fn pair(transport: Transport) -> [TestPort; 2] {
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
    let words =
        [0, 1].map(|side: usize| SemaphoreOffer::new(&connections[side], WordLocation::Host).unwrap());
    let memories = [0, 1].map(|side: usize| {
        let made = SharedMemory::create(BYTES).unwrap();
        let mapped = MappedMemory::open(&made.ticket().unwrap()).unwrap();
        let flags = TransportFlags::from(transport);
        (ports[side].register(Registrable::Shared(made), flags).unwrap(), mapped)
    });
    let records = [0, 1].map(|side: usize| memories[side].0.serialize());
    let mut side = 0;
    memories.map(|(memory, mapped)| {
        let this = TestPort {
            port: ports[side].clone(),
            semaphore: words[side].join(&words[1 - side].record()).unwrap(),
            memory,
            remote: ports[side].remote(&records[1 - side]).unwrap(),
            mapped,
        };
        side += 1;
        this
    })
}

fn put(offset: u64, bytes: u64) -> Put {
    Put { target_offset: offset, source_offset: BYTES as u64 / 2 + offset, bytes }
}

fn long_wait() -> Wait<'static> {
    Wait::within(LONG)
}

#[test]
fn a_put_arrives_before_its_signal() {
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
                        side.mapped.write(BYTES / 2, &vec![round; bytes]);
                        if round % 2 == 0 {
                            channel.put(put(0, bytes as u64), long_wait()).unwrap();
                            channel.signal(long_wait()).unwrap();
                            channel.flush(long_wait()).unwrap();
                        } else {
                            channel.put_with_signal_and_flush(put(0, bytes as u64), long_wait()).unwrap();
                        }
                        channel.wait(long_wait()).unwrap();
                        assert_eq!(side.read(0, bytes), vec![round; bytes], "round {round} over {transport}");
                        // The peer may write again after this signal.
                        channel.signal(long_wait()).unwrap();
                        channel.wait(long_wait()).unwrap();
                    }
                    assert!(!channel.poll().unwrap());
                    proxy.stop().unwrap();
                });
            }
        });
    }
}

#[test]
fn a_stop_executes_pushed_triggers_and_a_start_continues() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(64);
        let cursor = SemaphoreCursor::new(&other.semaphore, SemaphoreKind::HostToHost);
        for round in 0..20_u8 {
            one.mapped.write(BYTES / 2, &[round; 64]);
            for at in 0..60 {
                channel.put_with_signal(put(at, 1), long_wait()).unwrap();
            }
            // Pushed triggers are executed even if the proxy is stopped at once.
            proxy.start().unwrap();
            proxy.stop().unwrap();
            for _ in 0..60 {
                cursor.wait(long_wait()).unwrap();
            }
            assert_eq!(other.read(0, 60), [round; 60]);
        }
        assert!(!cursor.poll().unwrap());
        assert!(proxy.stop().is_ok(), "it may be stopped again");
    }
}

#[test]
fn dropping_a_proxy_executes_pushed_triggers() {
    let [one, other] = pair(Transport::SharedMemory);
    let (proxy, channel) = one.proxy(64);
    proxy.start().unwrap();
    for _ in 0..50 {
        channel.signal(long_wait()).unwrap();
    }
    drop(proxy);
    let arrived = long_wait().poll(|| (other.semaphore.signalled().unwrap() == 50).then_some(()));
    assert!(arrived.is_some());
    assert!(channel.flush(Wait::within(Duration::from_millis(50))).is_err(), "the proxy is gone");
}

#[test]
fn a_put_out_of_bounds_aborts_the_port_and_ends_all_waits() {
    for transport in TRANSPORTS {
        let [one, _other] = pair(transport);
        let (proxy, channel) = one.proxy(8);
        proxy.start().unwrap();
        channel.put(put(BYTES as u64, 1), long_wait()).unwrap();
        let waited = channel.wait(long_wait()).unwrap_err();
        assert_eq!(waited.kind(), "aborted");
        let why = one.port.failure().unwrap();
        let stopped = proxy.stop().unwrap_err();
        assert_eq!(stopped.kind(), "argument");
        assert!(why.contains(&stopped.to_string()), "{why}, {stopped}");
        assert!(channel.signal(long_wait()).is_err());
        assert!(channel.flush(long_wait()).is_err());
    }
}

#[test]
fn unknown_ids_are_rejected() {
    let [one, _other] = pair(Transport::SharedMemory);
    let (proxy, _channel) = one.proxy(8);
    let error = |channel: Result<PortChannel, PortError>| channel.unwrap_err().to_string();
    let (semaphore, memory) = (SemaphoreId(0), MemoryId(0));
    assert!(error(proxy.channel(semaphore, memory, MemoryId(2))).contains("unknown memory 2"));
    assert!(error(proxy.channel(SemaphoreId(1), memory, memory)).contains("unknown semaphore 1"));
    assert!(error(proxy.base_channel(SemaphoreId(1023))).contains("unknown semaphore 1023"));
    let base = proxy.base_channel(semaphore).unwrap();
    assert!(base.put(put(0, 1), long_wait()).is_err());
    assert_eq!(base.device_handle().unwrap().len(), 88);
    assert_eq!(proxy.channel(semaphore, memory, memory).unwrap().device_handle().unwrap().len(), 96);
}

#[test]
fn memories_and_semaphores_may_be_added_while_the_proxy_runs() {
    let [one, other] = pair(Transport::SharedMemory);
    let (proxy, channel) = one.proxy(8);
    proxy.start().unwrap();
    channel.signal(long_wait()).unwrap();
    for _ in 0..100 {
        let cursor = SemaphoreCursor::new(&one.semaphore, SemaphoreKind::HostToDevice);
        let id = proxy.add_semaphore(cursor).unwrap();
        let target = proxy.add_memory(one.remote.clone()).unwrap();
        let source = proxy.add_memory(one.memory.clone()).unwrap();
        let channel = proxy.channel(id, target, source).unwrap();
        channel.put_with_signal_and_flush(put(0, 8), long_wait()).unwrap();
    }
    assert!(long_wait().poll(|| (other.semaphore.signalled().unwrap() == 101).then_some(())).is_some());
    proxy.stop().unwrap();
}

#[test]
fn two_proxies_never_decrease_a_shared_semaphore() {
    const EACH: u64 = 2000;
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let proxies = [one.proxy(32), one.proxy(7)];
        std::thread::scope(|scope| {
            for (proxy, channel) in &proxies {
                proxy.start().unwrap();
                scope.spawn(|| (0..EACH).for_each(|_| channel.signal(long_wait()).unwrap()));
            }
            let mut seen = 0;
            let all = long_wait().poll(|| {
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
fn cursors_of_one_semaphore_count_separately() {
    TRANSPORTS.into_iter().for_each(cursors_count_separately);
}

fn cursors_count_separately(transport: Transport) {
    let [one, other] = pair(transport);
    let signals = SemaphoreCursor::new(&one.semaphore, SemaphoreKind::HostToHost);
    let cursors = [SemaphoreKind::HostToHost, SemaphoreKind::HostToDevice]
        .map(|kind| SemaphoreCursor::new(&other.semaphore, kind));
    for _ in 0..3 {
        signals.signal().unwrap();
    }
    for cursor in &cursors {
        for _ in 0..3 {
            cursor.wait(long_wait()).unwrap();
        }
        let late = cursor.wait(Wait { checks_max: Some(1000), ..Wait::default() }).unwrap_err();
        assert_eq!((late.kind(), late.to_string().contains("rank 0")), ("timeout", true), "{late}");
        assert!(!cursor.poll().unwrap());
    }
    signals.signal().unwrap();
    let new_cursor = SemaphoreCursor::new(&other.semaphore, SemaphoreKind::HostToHost);
    for _ in 0..4 {
        new_cursor.wait(long_wait()).unwrap();
    }
    assert!(cursors[0].poll().unwrap() && cursors[1].poll().unwrap());
}

#[test]
fn hosts_cannot_signal_semaphores_of_kernels() {
    let [one, _other] = pair(Transport::SharedMemory);
    let cursor = SemaphoreCursor::new(&one.semaphore, SemaphoreKind::Memory);
    assert_eq!(cursor.signal().unwrap_err().kind(), "argument");
    let between_hosts = SemaphoreCursor::new(&one.semaphore, SemaphoreKind::HostToHost);
    assert_eq!(between_hosts.host_handle().unwrap_err().kind(), "argument");
    assert_eq!(between_hosts.memory_handle().unwrap_err().kind(), "argument");
}

#[test]
fn an_abort_ends_a_wait_but_earlier_signals_count() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let signals = SemaphoreCursor::new(&one.semaphore, SemaphoreKind::HostToHost);
        let waits = SemaphoreCursor::new(&other.semaphore, SemaphoreKind::HostToHost);
        let late = SemaphoreCursor::new(&other.semaphore, SemaphoreKind::HostToHost);
        signals.signal().unwrap();
        let callers = Callers::default();
        std::thread::scope(|scope| {
            let aborter = scope.spawn(|| {
                callers.await_waiting(1);
                other.port.abort("rank 7 was lost");
                Instant::now()
            });
            waits.wait(long_wait()).unwrap();
            callers.add();
            let end = waits.wait(long_wait()).unwrap_err();
            let ended = Instant::now();
            assert!(end.to_string().contains("rank 7 was lost"), "{end}");
            let aborted = aborter.join().unwrap();
            assert!(ended.saturating_duration_since(aborted) < Duration::from_secs(5));
        });
        late.wait(long_wait()).unwrap();
    }
}

#[test]
fn several_threads_wait_on_one_port_independently() {
    const ROUNDS: u32 = 300;
    for transport in TRANSPORTS {
        let sides = pair(transport);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for side in &sides {
                // Two cursors per port; the first one signals, the other one only waits.
                for answers in [true, false] {
                    let cursor = SemaphoreCursor::new(&side.semaphore, SemaphoreKind::HostToHost);
                    scope.spawn(move || {
                        for _ in 0..ROUNDS {
                            if answers {
                                cursor.signal().unwrap();
                            }
                            cursor.wait(long_wait()).unwrap();
                        }
                        assert!(!cursor.poll().unwrap());
                    });
                }
            }
        });
        println!("{transport}: {:?} for a signal each way", begun.elapsed() / ROUNDS);
    }
}

#[test]
fn waits_end_at_their_deadline_or_when_cancelled() {
    for transport in TRANSPORTS {
        let [_one, other] = pair(transport);
        let cursor = SemaphoreCursor::new(&other.semaphore, SemaphoreKind::HostToHost);
        let begun = Instant::now();
        let late = cursor.wait(Wait::within(Duration::from_millis(120))).unwrap_err();
        assert_eq!((late.kind(), late.to_string().contains("rank 0")), ("timeout", true), "{late}");
        let cancelled = cursor
            .wait(long_wait().or_cancelled(Some(&CancelToken::new(Duration::from_millis(10), || true))))
            .unwrap_err();
        assert_eq!(cancelled.kind(), "timeout");
        assert_eq!(cursor.wait(Wait::until(begun)).unwrap_err().kind(), "timeout");
        assert!(begun.elapsed() < LONG / 2 && begun.elapsed() >= Duration::from_millis(120));
    }
}

#[test]
fn triggers_for_a_rank_that_has_left_are_ignored() {
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(8);
        for _ in 0..3 {
            channel.put_with_signal(put(0, 8), long_wait()).unwrap();
        }
        drop(other);
        let connection = one.semaphore.connection();
        assert!(long_wait().poll(|| connection.is_over().then_some(())).is_some());
        proxy.start().unwrap();
        proxy.stop().unwrap();
        assert_eq!(one.port.failure(), None);
        assert_eq!(channel.wait(long_wait()).unwrap_err().kind(), "lost");
        assert_eq!(channel.signal(long_wait()).unwrap_err().kind(), "lost");
    }
}

#[test]
fn a_push_to_a_stopped_proxy_reports_it() {
    let [one, _other] = pair(Transport::SharedMemory);
    let (_proxy, channel) = one.proxy(4);
    let shortly = || Wait::within(Duration::from_millis(50));
    for _ in 0..4 {
        channel.signal(shortly()).unwrap();
    }
    let error = channel.signal(shortly()).unwrap_err();
    assert!(error.to_string().contains("not running"), "{error}");
}

#[test]
fn a_proxy_executes_many_triggers_per_second() {
    const TRIGGERS: u32 = 200_000;
    for transport in TRANSPORTS {
        let [one, other] = pair(transport);
        let (proxy, channel) = one.proxy(512);
        let count = if transport == Transport::Ethernet { TRIGGERS / 10 } else { TRIGGERS };
        proxy.start().unwrap();
        let begun = Instant::now();
        for _ in 0..count {
            channel.signal(long_wait()).unwrap();
        }
        channel.flush(long_wait()).unwrap();
        let took = begun.elapsed();
        let last = long_wait().poll(|| (other.semaphore.signalled().unwrap() == count.into()).then_some(()));
        assert!(last.is_some());
        println!(
            "{transport}: {:.0} triggers a second, pushed by one thread",
            f64::from(count) / took.as_secs_f64()
        );
        proxy.stop().unwrap();
    }
}
