//! Groups of fixed ranks, over TCP and through shared memory.

use crate::blocked::Callers;
use crate::rank_threads::{bootstrap_file, run_ranks};
use ringfold::{Error, Group, GroupBuffers, GroupOp, Media, Memory, Operation, ReduceOp, TransferTag, View};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Runs all ranks of a group as threads.
fn ranks<R: Send>(world: usize, media: Media, run: impl Fn(Group) -> R + Sync) -> Vec<R> {
    const LONG: Duration = Duration::from_secs(60);
    run_ranks(world, |builder| builder.media(media).timeout(LONG).connect_timeout(LONG), run)
}

fn everywhere(run: impl Fn(Group) + Sync) {
    for media in [Media::Tcp, Media::Auto] {
        for world in 1..=4 {
            ranks(world, media, |group| {
                assert_eq!(group.is_shared(), media == Media::Auto && world > 1);
                run(group);
            });
        }
    }
}

/// The input of a rank: small numbers, so that sums are exact.
fn input_of(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + rank * 13) % 101) as f32).collect()
}

fn sum_of(world: usize, count: usize) -> Vec<f32> {
    let all: Vec<_> = (0..world).map(|rank| input_of(rank, count)).collect();
    (0..count).map(|i| all.iter().map(|data| data[i]).sum()).collect()
}

const COUNTS: [usize; 5] = [0, 1, 7, 1000, 300_001];

#[test]
fn reductions_combine_the_data_of_all_ranks() {
    everywhere(|group| {
        let (me, world) = (group.rank(), group.world());
        for count in COUNTS {
            let mut data = input_of(me, count);
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, sum_of(world, count));
            let mut apart = vec![0.0; count];
            group.all_reduce_into(&input_of(me, count), &mut apart, ReduceOp::Sum).unwrap();
            assert_eq!(apart, sum_of(world, count));
            for root in 0..world {
                let mut data = input_of(me, count);
                group.reduce(&mut data, root, ReduceOp::Sum).unwrap();
                let expected = if root == me { sum_of(world, count) } else { input_of(me, count) };
                assert_eq!(data, expected);
            }
            let mut part = vec![0.0; count];
            group.reduce_scatter(&input_of(me, count * world), &mut part, ReduceOp::Sum).unwrap();
            assert_eq!(part, sum_of(world, count * world)[me * count..][..count]);
        }
        let mut mean = [me as i32 * 10];
        group.all_reduce(&mut mean, ReduceOp::Avg).unwrap();
        assert_eq!(mean[0], (0..world as i32).map(|rank| rank * 10).sum::<i32>() / world as i32);
    });
}

#[test]
fn data_movement_collectives_deliver_the_right_data() {
    everywhere(|group| {
        let (me, world) = (group.rank(), group.world());
        for count in COUNTS {
            let all: Vec<f32> = (0..world).flat_map(|rank| input_of(rank, count)).collect();
            let mut gathered = vec![0.0; count * world];
            group.all_gather(&input_of(me, count), &mut gathered).unwrap();
            assert_eq!(gathered, all);
            for root in 0..world {
                let mut data = if root == me { input_of(root, count) } else { vec![0.0; count] };
                group.broadcast(&mut data, root).unwrap();
                assert_eq!(data, input_of(root, count));
                let mut gathered = vec![0.0; if root == me { count * world } else { 0 }];
                group.gather(&input_of(me, count), &mut gathered, root).unwrap();
                assert_eq!(gathered, if root == me { all.clone() } else { vec![] });
                let mut part = vec![0.0; count];
                let whole = if root == me { input_of(root, count * world) } else { vec![] };
                group.scatter(&whole, &mut part, root).unwrap();
                assert_eq!(part, input_of(root, count * world)[me * count..][..count]);
            }
            let mut swapped = vec![0.0; count * world];
            group.all_to_all(&input_of(me, count * world), &mut swapped).unwrap();
            for (rank, piece) in swapped.chunks(count.max(1)).enumerate() {
                assert_eq!(piece, &input_of(rank, count * world)[me * count..][..count]);
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn parts_may_differ_in_size() {
    everywhere(|group| {
        let (me, world) = (group.rank(), group.world());
        for scale in [1, 1000, 40_000] {
            // The part of rank 0 is empty.
            let counts: Vec<usize> = (0..world).map(|rank| rank * scale).collect();
            let (mine, total) = (counts[me], counts.iter().sum::<usize>());
            let start = |rank: usize| counts[..rank].iter().sum::<usize>();
            let all: Vec<f32> = (0..world).flat_map(|rank| input_of(rank, counts[rank])).collect();
            let mut gathered = vec![0.0; total];
            group.all_gather_v(&input_of(me, mine), &mut gathered, &counts).unwrap();
            assert_eq!(gathered, all);
            let mut part = vec![0.0; mine];
            group.reduce_scatter_v(&input_of(me, total), &mut part, &counts, ReduceOp::Sum).unwrap();
            assert_eq!(part, sum_of(world, total)[start(me)..][..mine]);
            for root in 0..world {
                let mut gathered = vec![0.0; if root == me { total } else { 0 }];
                let known = if root == me { counts.clone() } else { vec![] };
                group.gather_v(&input_of(me, mine), &mut gathered, &known, root).unwrap();
                assert_eq!(gathered, if root == me { all.clone() } else { vec![] });
                let whole = if root == me { input_of(root, total) } else { vec![] };
                group.scatter_v(&whole, &mut part, &known, root).unwrap();
                assert_eq!(part, input_of(root, total)[start(me)..][..mine]);
            }
            // Rank a sends b elements times the scale to rank b.
            let send: Vec<usize> = (0..world).map(|to| to * scale).collect();
            let receive = vec![me * scale; world];
            let mut swapped = vec![0.0; me * scale * world];
            group.all_to_all_v(&input_of(me, total), &send, &mut swapped, &receive).unwrap();
            let expected: Vec<f32> =
                (0..world).flat_map(|from| input_of(from, total)[start(me)..][..mine].to_vec()).collect();
            assert_eq!(swapped, expected);
        }
    });
}

#[test]
fn transfers_keep_their_order_and_disturb_no_collective() {
    everywhere(|group| {
        let (me, world) = (group.rank(), group.world());
        if world == 1 {
            return;
        }
        let (next, previous) = ((me + 1) % world, (me + world - 1) % world);
        for count in COUNTS {
            let send = |tag: usize| Operation {
                op: GroupOp::Send { to: next, tag: TransferTag::default() },
                dtype: ringfold::DType::F32,
                buffers: GroupBuffers::OutOfPlace {
                    input: vec![View::from(bytes(&input_of(me + tag, count)))],
                    output: vec![],
                },
                timeout: None,
            };
            let first = group.submit(send(1)).unwrap();
            let second = group.submit(send(2)).unwrap();
            let mut sum = input_of(me, count);
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, sum_of(world, count));
            let mut data = vec![0.0; count];
            for tag in [1, 2] {
                group.recv(&mut data, previous).unwrap();
                assert_eq!(data, input_of(previous + tag, count));
            }
            first.wait().unwrap();
            second.wait().unwrap();
        }
    });
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn asynchronous_work_is_executed_in_order() {
    everywhere(|group| {
        let world = group.world();
        let works: Vec<_> = (0..20)
            .map(|_| {
                let buffers = GroupBuffers::InPlace(Memory::from(bytes(&input_of(group.rank(), 5000))));
                let op = GroupOp::AllReduce(ReduceOp::Sum);
                let dtype = ringfold::DType::F32;
                group.submit(Operation { op, dtype, buffers, timeout: None }).unwrap()
            })
            .collect();
        let mut data = input_of(group.rank(), 10);
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, sum_of(world, 10));
        assert!(works.iter().all(|work| work.is_done()), "earlier work ends earlier");
        for work in works {
            let (result, buffers) = work.finish();
            result.unwrap();
            let Some(GroupBuffers::InPlace(memory)) = buffers else { panic!("no memory was returned") };
            assert_eq!(memory.as_slice(), bytes(&sum_of(world, 5000)));
        }
    });
}

#[test]
fn several_groups_live_side_by_side() {
    for media in [Media::Tcp, Media::Auto] {
        let (one, two) = (bootstrap_file(), bootstrap_file());
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let files = [one.clone(), two.clone()];
                scope.spawn(move || {
                    let groups = files.map(|at| {
                        Group::builder().rank(rank).world(2).bootstrap(at).media(media).connect().unwrap()
                    });
                    std::thread::scope(|scope| {
                        for (number, group) in groups.iter().enumerate() {
                            scope.spawn(move || {
                                for _ in 0..50 {
                                    let mut data = input_of(rank + number, 10_000);
                                    group.all_reduce(&mut data, ReduceOp::Max).unwrap();
                                }
                            });
                        }
                    });
                });
            }
        });
    }
}

#[test]
fn invalid_arguments_are_rejected_before_anything_is_sent() {
    everywhere(|group| {
        let world = group.world();
        let error = |result: Result<(), Error>| match result {
            Err(Error::BadArgument(why)) => why,
            other => panic!("{other:?}"),
        };
        let why = error(group.broadcast(&mut [0.0_f32], world));
        assert!(why.contains(&format!("0 to {}", world - 1)) && why.contains(&world.to_string()), "{why}");
        assert!(error(group.send(&[1.0_f32], group.rank())).contains("itself"));
        assert!(error(group.all_gather(&[1.0_f32], &mut vec![0.0; world + 1])).contains("output"));
        assert!(error(group.all_reduce(&mut [1.0_f32], ReduceOp::BitAnd)).contains("float32"));
        assert!(error(group.all_gather_v(&[1.0_f32], &mut [0.0], &vec![1; world + 1])).contains("counts"));
        // The group still works.
        group.barrier().unwrap();
    });
}

#[test]
fn different_calls_of_ranks_are_detected() {
    for media in [Media::Tcp, Media::Auto] {
        let errors = ranks(3, media, |group| {
            let count = if group.rank() == 2 { 500 } else { 400 };
            group.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum).unwrap_err().to_string()
        });
        for error in errors {
            for part in ["rank 2", "(sum of 400 x float32)", "(sum of 500 x float32)"] {
                assert!(error.contains(part), "{media:?}: {error}");
            }
        }
    }
}

#[test]
fn both_calls_are_named_if_one_rank_has_gone_on() {
    for media in [Media::Tcp, Media::Auto] {
        let errors = ranks(2, media, |group| {
            if group.rank() == 0 {
                // It only sends, so it does not wait for the other rank here, but in its next call.
                let sent = group.broadcast(&mut [1_i32; 5], 0);
                return sent.and_then(|()| group.barrier()).unwrap_err().to_string();
            }
            group.reduce(&mut [1_i64; 7], 1, ReduceOp::Max).unwrap_err().to_string()
        });
        for error in errors {
            for part in ["broadcast from rank 0 (5 x int32)", "reduce to rank 1 (max of 7 x int64)"] {
                assert!(error.contains(part), "{media:?}: {error}");
            }
        }
    }
}

#[test]
fn both_ends_of_a_transfer_are_named_with_their_tag() {
    let errors = ranks(2, Media::Auto, |group| {
        let tag = TransferTag::new(9).unwrap();
        if group.rank() == 0 {
            let sent = group.run_bytes(GroupOp::Send { to: 1, tag }, ringfold::DType::F32, &[0; 80], &mut []);
            return sent.and_then(|()| group.barrier()).unwrap_err().to_string();
        }
        group
            .run_bytes(GroupOp::Recv { from: 0, tag }, ringfold::DType::F32, &[], &mut [0; 40])
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        for part in ["(20 x float32) with tag 9", "(10 x float32) with tag 9"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_missing_rank_is_named_at_the_timeout() {
    for media in [Media::Tcp, Media::Auto] {
        let began = Instant::now();
        let errors = ranks(3, media, |group| {
            if group.rank() == 1 {
                // This rank lives, but never calls.
                let mut failure = None;
                while failure.is_none() && began.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(10));
                    failure = group.failure();
                }
                return failure.unwrap().to_string();
            }
            group.set_timeout(Duration::from_millis(300));
            group.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains("rank 1"), "{media:?}: {error}");
        }
    }
}

#[test]
fn leaving_after_the_last_call_is_not_a_failure() {
    for media in [Media::Tcp, Media::Auto] {
        ranks(3, media, |group| {
            for _ in 0..20 {
                group.all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum).unwrap();
                group.broadcast(&mut [1.0_f32; 100], 0).unwrap();
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    for media in [Media::Tcp, Media::Auto] {
        let callers = Callers::default();
        let ends = ranks(3, media, |group| {
            group.all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum).unwrap();
            if group.rank() == 0 {
                callers.await_waiting(2);
                return String::new();
            }
            callers.add();
            group.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).unwrap_err().to_string()
        });
        for end in &ends[1..] {
            assert!(end.contains("rank 0") && end.contains("left"), "{media:?}: {end}");
        }
    }
}

#[test]
fn an_aborted_group_fails_on_all_ranks() {
    for media in [Media::Tcp, Media::Auto] {
        let callers = Callers::default();
        let errors = ranks(3, media, |group| {
            if group.rank() == 2 {
                callers.await_waiting(2);
                group.abort();
            } else {
                callers.add();
            }
            let first = group.barrier().unwrap_err().to_string();
            assert_eq!(group.barrier().unwrap_err().to_string(), first);
            first
        });
        for error in errors {
            assert!(error.contains("rank 2") && error.contains("aborted the group"), "{error}");
        }
    }
}

#[test]
fn on_failure_is_called_once_and_never_after_leaving() {
    for media in [Media::Tcp, Media::Auto] {
        let calls = AtomicUsize::new(0);
        // No rank is inside the group's barrier any more when rank 1 aborts.
        let has_passed = std::sync::Barrier::new(2);
        ranks(2, media, |group| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let early = sender.clone();
            group.on_failure(move |error| early.send(error.to_string()).unwrap());
            group.barrier().unwrap();
            has_passed.wait();
            if group.rank() == 1 {
                group.abort();
            }
            // No thread waits in a call of the group.
            let text = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(text.contains("rank 1") && text.contains("aborted the group"), "{text}");
            group.on_failure(move |error| sender.send(error.to_string()).unwrap());
            assert_eq!(receiver.try_recv().unwrap(), text, "it has failed already");
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 2);
        ranks(2, media, |group| {
            let (sender, receiver) = std::sync::mpsc::channel();
            group.on_failure(move |error| sender.send(error.to_string()).unwrap());
            group.barrier().unwrap();
            group.close();
            assert!(
                receiver.recv_timeout(Duration::from_secs(30)).is_err(),
                "the callback ran after leaving"
            );
        });
    }
}

#[test]
fn an_on_failure_callback_may_call_the_group() {
    for media in [Media::Tcp, Media::Auto] {
        // No rank is inside the group's barrier any more when rank 1 aborts.
        let has_passed = std::sync::Barrier::new(2);
        ranks(2, media, |group| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let of_callback = group.clone();
            group.on_failure(move |error| {
                let barrier = of_callback.barrier();
                of_callback.abort();
                sender.send((error.clone(), of_callback.failure(), barrier)).unwrap();
            });
            group.barrier().unwrap();
            has_passed.wait();
            if group.rank() == 1 {
                let group = group.clone();
                std::thread::spawn(move || group.abort());
            }
            let (error, failure, barrier) = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!((failure.as_ref(), barrier.as_ref()), (Some(&error), Err(&error)));
        });
    }
}

#[test]
fn a_panic_in_submit_then_fails_only_that_operation() {
    for media in [Media::Tcp, Media::Auto] {
        ranks(2, media, |group| {
            let sum = || Operation {
                op: GroupOp::AllReduce(ReduceOp::Sum),
                dtype: ringfold::DType::U8,
                buffers: GroupBuffers::InPlace(Memory::from(vec![1; 3])),
                timeout: None,
            };
            let broken = group.submit_then(sum(), |_| panic!("no room for the result")).unwrap();
            let next = group.submit(sum()).unwrap();
            let error = broken.wait_for(Duration::from_secs(30)).expect("an end").unwrap_err();
            assert!(
                matches!(&error, Error::Internal(why) if why.contains("no room for the result")),
                "{error}"
            );
            next.wait_for(Duration::from_secs(30)).expect("an end").unwrap();
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_closure_that_panics_when_it_is_dropped_unused_does_no_harm() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let group = Group::builder().rank(0).world(1).connect().unwrap();
    let sum = |buffers| Operation {
        op: GroupOp::AllReduce(ReduceOp::Sum),
        dtype: ringfold::DType::U8,
        buffers: GroupBuffers::InPlace(buffers),
        timeout: None,
    };
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let (enter, entered) = std::sync::mpsc::channel();
    let first = group.submit_then(sum(Memory::from(vec![1])), move |_| {
        enter.send(()).unwrap();
        let _ = held.recv_timeout(Duration::from_secs(30));
    });
    entered.recv_timeout(Duration::from_secs(30)).unwrap();
    // The group fails while these wait in the queue, so their closures are dropped unused by its thread.
    let bombs = [PanicsOnDrop, PanicsOnDrop];
    let waiting =
        bombs.map(|bomb| group.submit_then(sum(Memory::from(vec![1])), move |_| drop(bomb)).unwrap());
    group.abort();
    drop(hold);
    first.unwrap().wait_for(Duration::from_secs(30)).expect("an end").unwrap();
    for work in waiting {
        work.wait_for(Duration::from_secs(30)).expect("an end").unwrap_err();
    }
}

#[test]
fn blocking_and_queued_collectives_use_the_same_transport() {
    // The queue may become idle while a blocking call decides where it runs.
    ranks(2, Media::Shared, |group| {
        for _ in 0..5_000 {
            let op = GroupOp::AllReduce(ReduceOp::Sum);
            let buffers = GroupBuffers::InPlace(Memory::from(bytes(&[1.0])));
            let operation = Operation { op, dtype: ringfold::DType::F32, buffers, timeout: None };
            let queued = group.submit(operation).unwrap();
            let mut data = [1.0_f32];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            queued.wait().unwrap();
            assert_eq!(data, [2.0]);
        }
    });
}
