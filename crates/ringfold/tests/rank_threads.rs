//! Runs the ranks of a group as threads of the test.

use ringfold::{Bootstrap, Group, GroupBuilder, Media};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bootstrap file that no other group uses.
pub fn bootstrap_file() -> Bootstrap {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    Bootstrap::File(std::env::temp_dir().join(format!("ringfold-test-{}-{number}", std::process::id())))
}

/// Runs all ranks of a group as threads, and returns their results.
pub fn run_ranks<R: Send>(
    world: usize,
    configure: impl Fn(GroupBuilder) -> GroupBuilder + Sync,
    run: impl Fn(Group) -> R + Sync,
) -> Vec<R> {
    let at = bootstrap_file();
    std::thread::scope(|scope| {
        let start = |rank| {
            let builder = configure(Group::builder().rank(rank).world(world).bootstrap(at.clone()));
            let run = &run;
            scope.spawn(move || run(builder.connect().unwrap()))
        };
        let ranks: Vec<_> = (0..world).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs all ranks of a group as threads, first over TCP and then through shared memory.
pub fn run_on_both_media(
    world: usize,
    configure: impl Fn(GroupBuilder) -> GroupBuilder + Sync,
    run: impl Fn(Group) + Sync,
) {
    for media in [Media::Tcp, Media::Shared] {
        run_ranks(world, |builder| configure(builder).media(media), &run);
    }
}
