//! User code of a group whose driver has panicked.

use crate::group::Group;
use crate::{Error, WindowMemory};
use ringfold_fabric::memory::Memory;
use std::sync::mpsc::channel;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_panic_in_the_driver_runs_the_failure_callbacks_and_ends_the_waits_of_windows() {
    let group = Group::builder().rank(0).world(1).connect().unwrap();
    let window = group.window(WindowMemory::from(Memory::zeroed(8)), &[]).unwrap();
    let (say, heard) = channel();
    for may_panic in [true, false] {
        let say = say.clone();
        group.on_failure(move |error| {
            say.send(error.clone()).unwrap();
            assert!(!may_panic, "as planned");
        });
    }
    let waiter = std::thread::spawn(move || window.wait_signal(0, Some(LONG * 2)));
    let panicked = group.core().engine.with(|_| -> () { panic!("as planned") });
    assert!(matches!(panicked, Err(Error::Internal(_))));
    for _ in 0..2 {
        let error = heard.recv_timeout(LONG).expect("each callback runs, whether or not another panics");
        assert!(matches!(error, Error::GroupFailed(_)), "{error}");
    }
    assert!(matches!(waiter.join().unwrap(), Err(Error::GroupFailed(_))));
}
