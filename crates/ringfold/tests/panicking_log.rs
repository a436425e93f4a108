//! A log may panic, for example if its output is closed. Here it always does, on the master's thread.

use ringfold::{Error, Master};
use std::sync::mpsc;
use std::time::Duration;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        assert_ne!(std::thread::current().name(), Some("ringfold-master"), "the log panics");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_panicking_log_does_not_block_the_wait_for_a_master() {
    if !crate::own_process::is_own_process(
        "panicking_log::a_panicking_log_does_not_block_the_wait_for_a_master",
    ) {
        return;
    }
    tracing::subscriber::set_global_default(Panicking).expect("the only log");
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().expect("listening");
    // Ending is logged.
    master.interrupt();
    let (sender, outcome) = mpsc::channel();
    std::thread::spawn(move || sender.send(master.wait()));
    let outcome = outcome.recv_timeout(Duration::from_secs(10)).expect("an end");
    assert!(matches!(outcome, Err(Error::Internal(_))), "{outcome:?}");
}
