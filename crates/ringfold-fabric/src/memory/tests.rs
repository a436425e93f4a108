use super::*;

#[test]
fn lending_returns_only_when_every_part_is_gone() {
    let mut bytes = vec![0u8; 1000];
    let thread = lend_mut(&mut bytes, |memory| {
        let (mut left, right) = memory.split_at(10);
        drop(right);
        std::thread::spawn(move || {
            // Longer than it takes to return from `lend_mut`.
            std::thread::sleep(Duration::from_millis(20));
            left.as_mut_slice().fill(9);
        })
    });
    assert_eq!(bytes[..11], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
    thread.join().unwrap();
}

#[test]
fn lending_many_returns_only_when_every_one_is_gone() {
    let (mut first, mut none, mut last) = (vec![0_u8; 10], [], vec![0_u8; 20]);
    let thread = lend_all_mut(vec![&mut first, &mut none, &mut last], |mut memories| {
        assert_eq!(memories.iter().map(Memory::len).collect::<Vec<_>>(), [10, 0, 20]);
        memories[0].as_mut_slice().fill(1);
        let (_, mut end) = memories.remove(2).split_at(19);
        std::thread::spawn(move || {
            // Longer than it takes to return from `lend_all_mut`.
            std::thread::sleep(Duration::from_millis(20));
            end.as_mut_slice().fill(9);
        })
    });
    assert_eq!((first[9], last[18], last[19]), (1, 0, 9));
    thread.join().unwrap();
}

#[test]
fn owned_memory_outlives_its_makers() {
    let lease = Memory::from(vec![5; 8]).lease(2..6);
    assert_eq!(lease.len(), 4);
    let view = View::from(vec![1, 2, 3]);
    assert_eq!(view.clone().as_slice(), [1, 2, 3]);
}

#[test]
fn an_owner_is_kept_until_the_last_part_is_gone() {
    let owner = Arc::new(vec![7_u8; 8]);
    // SAFETY: the owner has the bytes, and nobody writes them.
    let view = unsafe { View::kept(owner.as_ptr(), 8, Box::new(owner.clone())) };
    let lease = view.lease(3..5);
    drop(view);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(lease);
    assert_eq!(Arc::strong_count(&owner), 1);

    let mut bytes = vec![1_u8; 8];
    let start = bytes.as_mut_ptr();
    let told = Arc::new(());
    // SAFETY: nobody but the memory uses the bytes, which the owner has.
    let memory = unsafe { Memory::kept(start, 8, Box::new((bytes, told.clone()))) };
    let (left, mut right) = memory.split_at(4);
    drop(left);
    right.as_mut_slice().fill(9);
    assert_eq!((right.as_slice(), Arc::strong_count(&told)), (&[9_u8; 4][..], 2));
    drop(right.into_view());
    assert_eq!(Arc::strong_count(&told), 1);
}

#[test]
fn only_pieces_that_have_arrived_can_be_read() {
    let arrivals = Arc::new(Arrivals::new(10, 4));
    let view = Memory::from((0..10).collect::<Vec<u8>>()).into_arriving_view(arrivals.clone());
    assert_eq!(arrivals.pieces(), 3);
    assert!(view.has(5..5) && !view.has(0..1) && !view.has(0..10));
    arrivals.add(1);
    assert!(view.has(4..8) && !view.has(3..5) && !view.has(7..9));
    assert_eq!((view.part(5..8), view.lease(4..6).len()), (&[5, 6, 7][..], 2));
    let clone = view.clone();
    for unread in [0..4, 4..9, 0..10] {
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| clone.part(unread).len()));
        assert!(read.is_err());
    }
    arrivals.add(0);
    arrivals.add(2);
    assert_eq!(view.as_slice(), (0..10).collect::<Vec<u8>>());
    assert!(!view.has(8..13), "there is no such piece");
}
