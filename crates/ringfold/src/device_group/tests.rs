use super::*;
use crate::Bootstrap;

/// Runs a function in several ranks, each a thread.
fn ranks<T: Send>(world: usize, name: &str, each: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let file = std::env::temp_dir().join(format!("ringfold-{name}-{}", std::process::id()));
    let connect = |rank| {
        let at = Bootstrap::File(file.clone());
        Group::builder().rank(rank).world(world).bootstrap(at).connect().unwrap()
    };
    let (connect, each) = (&connect, &each);
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..world).map(|rank| scope.spawn(move || each(connect(rank)))).collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_return_the_same_error_if_one_has_no_device() {
    let errors = ranks(3, "no-device", |group| {
        let ordinal = (group.rank() != 1).then_some(1000);
        let opened = DeviceGroup::open(&group, ordinal, &KernelSources::default()).unwrap();
        // The group itself still works.
        group.barrier().unwrap();
        opened.err().map(|unfit| unfit.to_string())
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0], errors[2]);
    let text = errors[0].as_deref().unwrap();
    // Rank 0 is the first that fails: it has no driver, or no such device.
    assert!(text.starts_with("rank 0: ") && text.contains("no CUDA d"), "{text}");
}
