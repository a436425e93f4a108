use super::*;
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn releases_run_in_order_without_blocking_the_caller() {
    let (go, gate) = channel::<()>();
    let (sender, receiver) = channel();
    let first = sender.clone();
    release_soon(move || {
        let _ = gate.recv_timeout(Duration::from_secs(10));
        let _ = first.send(1);
    });
    release_soon(move || sender.send(2).unwrap_or_default());
    assert!(receiver.try_recv().is_err());
    go.send(()).unwrap();
    let order = [(); 2].map(|()| receiver.recv_timeout(Duration::from_secs(10)).unwrap());
    assert_eq!(order, [1, 2]);
}

#[test]
fn releases_are_deferred_up_to_the_limit_while_a_connection_is_open() {
    let queue: &'static ReleaseQueue = Box::leak(Box::default());
    let (sender, receiver) = channel();
    let release = |number: usize| {
        let sender = sender.clone();
        Box::new(move || sender.send(number).unwrap())
    };
    let next = || queue.pending.lock().next().map(|release| release());
    let (one, other) = (ConnectionHold::on(queue), ConnectionHold::on(queue));
    for number in 0..=DEFERRED_MAX {
        assert!(queue.pending.lock().defer(1, release(number)).is_none());
    }
    queue.pending.lock().now.push_back(release(1000));
    while next().is_some() {}
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1000, 0]);
    assert!(queue.pending.lock().defer(DEFERRED_BYTES_MAX - 10, release(2000)).is_none());
    drop(one);
    while next().is_some() {}
    // Enough are released that the rest is within the limit of bytes.
    let released = receiver.try_iter().collect::<Vec<_>>();
    assert_eq!(released, (1..=DEFERRED_MAX - 10).collect::<Vec<_>>());
    drop(other);
    while next().is_some() {}
    let rest = (DEFERRED_MAX - 9..=DEFERRED_MAX).chain([2000]).collect::<Vec<_>>();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), rest);
    assert_eq!(queue.pending.lock().deferred_bytes, 0);
    assert!(queue.pending.lock().defer(1, release(3000)).is_some(), "the caller releases it");
}
