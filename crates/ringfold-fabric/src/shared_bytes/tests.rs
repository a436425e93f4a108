use super::*;
use core::sync::atomic::Ordering;

fn with<R>(user: impl FnOnce(SharedBytes<'_>) -> R) -> R {
    let mut memory = [AtomicU64::new(0), AtomicU64::new(0)];
    let start = NonNull::from(&mut memory).cast();
    // SAFETY: the words live until the user is done, and nobody else uses them.
    user(unsafe { SharedBytes::new(start, 16) })
}

#[test]
fn bytes_are_copied_and_words_are_seen_by_all() {
    with(|shared| {
        shared.part(3..6).copy_from(&[1, 2, 3]);
        let mut all = [9; 16];
        shared.copy_to(&mut all);
        assert_eq!(all[..8], [0, 0, 0, 1, 2, 3, 0, 0]);
        shared.word(8).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(shared.half_word(12).load(Ordering::Relaxed), u32::MAX);
        std::thread::scope(|scope| {
            scope.spawn(|| shared.word(0).store(7, Ordering::Release));
            while shared.word(0).load(Ordering::Acquire) != 7 {
                std::thread::yield_now();
            }
        });
        // SAFETY: nobody else uses the bytes now.
        assert_eq!(unsafe { shared.part(12..14).assume_unwritten() }, [255, 255]);
        // SAFETY: as above.
        let last = unsafe { shared.part(15..16).assume_exclusive() };
        last[0] = 1;
        assert_eq!(shared.word(8).load(Ordering::Relaxed).to_ne_bytes()[7], 1);
    });
}

#[test]
fn what_lies_outside_or_is_not_aligned_panics() {
    let panics = |user: fn(SharedBytes<'_>)| std::panic::catch_unwind(|| with(user)).is_err();
    assert!(panics(|shared| {
        core::hint::black_box(shared.part(8..17));
    }));
    assert!(panics(|shared| {
        core::hint::black_box(shared.part(Range { start: usize::MAX, end: 0 }));
    }));
    assert!(panics(|shared| {
        core::hint::black_box(shared.word(9));
    }));
    assert!(panics(|shared| {
        core::hint::black_box(shared.word(16));
    }));
    assert!(panics(|shared| {
        core::hint::black_box(shared.word(usize::MAX - 7));
    }));
    assert!(panics(|shared| {
        core::hint::black_box(shared.half_word(2));
    }));
    assert!(panics(|shared| shared.copy_to(&mut [0; 15])));
    assert!(panics(|shared| shared.copy_from(&[0; 17])));
}
