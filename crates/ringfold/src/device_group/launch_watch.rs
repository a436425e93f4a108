//! Reports collectives on the device that wait for ranks that have not launched them.

use crate::Group;
use crate::group::WatchedWait;
use crate::limits::deadline_after;
use ringfold_proto::cause::Wait;
use std::time::Instant;

/// The oldest collective of this rank that is not done.
#[derive(Default)]
pub(super) struct LaunchWatch {
    oldest: Option<Oldest>,
}

struct Oldest {
    number: u64,
    since: Instant,
    /// From the second look on. It may wait for work of this rank; the group only names ranks that have not launched it.
    watched: Option<WatchedWait>,
}

impl LaunchWatch {
    /// Looks at the collectives of a rank from time to time: so many are done, so many others are launched.
    pub(super) fn look(&mut self, group: &Group, done: u64, unfinished: usize) {
        let number = done + 1;
        match &mut self.oldest {
            _ if unfinished == 0 => self.stop(),
            Some(oldest) if oldest.number == number => {
                if oldest.watched.is_none() {
                    let until = deadline_after(group.timeout().saturating_sub(oldest.since.elapsed()));
                    oldest.watched = group.watch_launch(number, oldest.since, until);
                }
            }
            _ => self.oldest = Some(Oldest { number, since: Instant::now(), watched: None }),
        }
    }

    /// Watches nothing any more.
    pub(super) fn stop(&mut self) {
        self.oldest = None;
    }

    /// What is known of the wait for a rank.
    pub(super) fn describe(&self, rank: usize) -> Option<Wait> {
        self.oldest.as_ref()?.watched.as_ref()?.describe(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bootstrap;
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use ringfold_proto::cause::JointCall;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_rank_that_has_not_launched_is_described_until_it_has() {
        let file = std::env::temp_dir().join(format!("ringfold-launches-{}", std::process::id()));
        let connect = |rank| {
            let at = Bootstrap::File(file.clone());
            let settings = Group::builder().rank(rank).world(2).bootstrap(at).timeout(LONG);
            std::thread::spawn(move || settings.warn_after(Duration::from_millis(300)).connect().unwrap())
        };
        let groups = [0, 1].map(connect).map(|group| group.join().unwrap());
        let mut watch = LaunchWatch::default();
        watch.look(&groups[0], 4, 0);
        assert!(watch.describe(1).is_none(), "nothing is launched");
        watch.look(&groups[0], 4, 2);
        assert!(watch.describe(1).is_none(), "it was seen once");
        groups[1].launches().unwrap().store(4, Ordering::Relaxed);
        watch.look(&groups[0], 4, 2);
        let described = |watch: &LaunchWatch, is_fine: &dyn Fn(&Wait) -> bool| {
            let end = Instant::now() + LONG;
            loop {
                let wait = watch.describe(1).expect("it waits");
                if is_fine(&wait) {
                    return wait;
                }
                assert!(Instant::now() < end, "{wait}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let wait = described(&watch, &|wait| wait.to_string().contains("alive, computing"));
        assert!(!wait.begun && matches!(wait.call, Some(JointCall::Group(_))), "{wait}");
        assert!(wait.to_string().contains("it has not called a collective #5 on its CUDA device"), "{wait}");
        groups[1].launches().unwrap().store(5, Ordering::Relaxed);
        described(&watch, &|wait| wait.begun);
        watch.look(&groups[0], 5, 1);
        assert!(watch.describe(1).is_none(), "another one is the oldest");
        watch.stop();
        std::fs::remove_file(&file).ok();
    }
}
