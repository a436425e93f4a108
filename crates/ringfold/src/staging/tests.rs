//! Launches whose buffers are supplied later, with host memory: no device is needed.

use super::pipeline::{ArrivingInput, EarlyOutput, PIECE_BYTES, Pipeline, PipelineResult};
use crate::all_reduce::HostBuffers;
use crate::engine::{Engine, Waiting};
use crate::{AllReduce, Cause, Communicator, DType, Error, Failure, Master};
use core::ops::Range;
use ringfold_cuda::CudaError;
use ringfold_fabric::memory::{Arrivals, Lease, Memory, View};
use ringfold_fabric::reactor::Drive as _;
use ringfold_proto::id::{CallId, Tag};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Two peers of one run, and its master.
fn pair() -> (Master, Communicator, Communicator) {
    let master = Master::builder().listen("127.0.0.1:0").build();
    master.run().unwrap();
    let address = master.addresses()[0].to_string();
    let peer = |name| Communicator::builder(&address).name(name).build().unwrap();
    let (one, other) = (peer("one"), peer("other"));
    one.connect().unwrap();
    thread::scope(|scope| {
        let joining = scope.spawn(|| other.connect());
        while one.attributes().group_world < 2 {
            one.update_topology().unwrap();
        }
        joining.join().unwrap().unwrap();
    });
    (master, one, other)
}

fn launch(engine: &Engine, tag: u64) -> Result<CallId, Error> {
    let descriptor = AllReduce::sum().descriptor(DType::U8, 4).unwrap();
    engine.with(|driver| driver.start(Tag(tag), descriptor, false, None))?
}

fn supply(engine: &Engine, call: CallId, bytes: Option<[u8; 4]>) {
    let buffers = |bytes: [u8; 4]| HostBuffers::OutOfPlace {
        source: View::from(bytes.to_vec()),
        target: Memory::zeroed(4),
    };
    engine.with(|driver| driver.supply(call, bytes.map(buffers))).unwrap();
}

fn sum(engine: &Engine, call: CallId) -> Vec<u8> {
    let ended = engine.wait(call);
    ended.result.unwrap();
    match ended.buffers {
        Some(HostBuffers::OutOfPlace { target, .. }) => target.as_slice().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Waits until an operation of the peer is in flight.
fn await_busy(engine: &Engine) {
    let end = Instant::now() + Duration::from_secs(20);
    while !engine.with(|driver| driver.is_busy()).unwrap() {
        assert!(Instant::now() < end, "timed out waiting for an operation");
        thread::sleep(Duration::from_millis(1));
    }
}

fn engine(peer: &Communicator) -> Arc<Engine> {
    peer.engine().unwrap()
}

#[test]
fn a_tag_is_in_flight_before_its_buffers_are_supplied() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 7).unwrap();
    assert_eq!(launch(&mine, 7), Err(Error::BadArgument("tag 7 is already in flight".into())));
    assert_eq!(
        one.all_reduce(&mut [1_u8], AllReduce::sum().tag(7)).unwrap_err(),
        launch(&mine, 7).unwrap_err()
    );
    assert_eq!(one.update_topology(), Err(Error::Failed(Failure::PendingOperations(1))));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let mut data = [10_u8, 20, 30, 40];
            other.all_reduce(&mut data, AllReduce::sum().tag(7)).map(|_| data)
        });
        await_busy(&engine(&other));
        // Nothing happens without the buffers.
        thread::sleep(Duration::from_millis(50));
        assert!(!mine.has_ended(call));
        supply(&mine, call, Some([1, 2, 3, 4]));
        assert_eq!(sum(&mine, call), [11, 22, 33, 44]);
        assert_eq!(theirs.join().unwrap(), Ok([11, 22, 33, 44]));
    });
}

#[test]
fn missing_buffers_abort_the_operation_for_all_and_the_next_one_runs() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    for supplied_at in [Duration::ZERO, Duration::from_millis(30)] {
        thread::scope(|scope| {
            let theirs = scope.spawn(|| other.all_reduce(&mut [9_u8; 4], AllReduce::sum()));
            let call = launch(&mine, 0).unwrap();
            // An operation that is decided before a peer calls is skipped there; its call would be the next operation.
            await_busy(&engine(&other));
            thread::sleep(supplied_at);
            supply(&mine, call, None);
            assert!(matches!(mine.wait(call).result, Err(Error::Failed(Failure::Aborted(_)))));
            assert!(matches!(theirs.join().unwrap(), Err(Error::Failed(Failure::Aborted(_)))));
        });
        thread::scope(|scope| {
            let theirs = scope.spawn(|| other.all_reduce(&mut [9_u8; 4], AllReduce::sum()));
            let call = launch(&mine, 0).unwrap();
            supply(&mine, call, Some([1; 4]));
            assert_eq!(sum(&mine, call), [10; 4]);
            theirs.join().unwrap().unwrap();
        });
    }
}

#[test]
fn an_operation_without_buffers_ends_when_a_peer_is_lost() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 0).unwrap();
    let began = Instant::now();
    other.leave();
    match mine.wait(call).result {
        Err(Error::Failed(Failure::Aborted(cause))) => {
            assert!(matches!(*cause, Cause::PeerLost { .. }), "{cause}")
        }
        ended => panic!("{ended:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    // Buffers that are supplied too late are released.
    supply(&mine, call, Some([1; 4]));
    assert_eq!(launch(&mine, 0), Err(Error::Failed(Failure::TooFewPeers)));
}

#[test]
fn leaving_ends_an_operation_without_buffers() {
    let (_master, one, _other) = pair();
    let mine = engine(&one);
    let call = launch(&mine, 0).unwrap();
    one.leave();
    assert_eq!(mine.wait(call).result.unwrap_err(), Error::Left);
    assert_eq!(mine.with(|driver| driver.supply(call, None)), Err(Error::Left));
}

/// An input whose next piece arrives when the test says so.
struct FakeInput {
    view: View,
    arrivals: Arc<Arrivals>,
    /// In which order the pieces arrive, the next one last.
    missing: Vec<usize>,
    next: Receiver<Result<(), CudaError>>,
}

impl FakeInput {
    fn new(bytes: Vec<u8>, next: Receiver<Result<(), CudaError>>) -> Self {
        let arrivals = Arc::new(Arrivals::new(bytes.len(), PIECE_BYTES));
        let missing = (0..arrivals.pieces()).collect();
        Self { view: Memory::from(bytes).into_arriving_view(arrivals.clone()), arrivals, missing, next }
    }
}

impl ArrivingInput for FakeInput {
    fn view(&self) -> View {
        self.view.clone()
    }

    fn wait_next(&mut self) -> Result<bool, CudaError> {
        if self.missing.is_empty() {
            return Ok(false);
        }
        self.next.recv_timeout(Duration::from_secs(60)).expect("the test says what happens")?;
        let piece = self.missing.pop().expect("there is one");
        self.arrivals.add(piece);
        Ok(true)
    }
}

/// An output that records what was copied, and fails after so many copies.
struct FakeOutput {
    copied: Vec<Range<usize>>,
    copies_max: usize,
    _bytes: Lease,
}

impl EarlyOutput for FakeOutput {
    fn add(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        if self.copied.len() == self.copies_max {
            return Err(CudaError::Unsupported("the test wants it".into()));
        }
        self.copied.push(range);
        Ok(())
    }
}

/// Three pieces and a bit.
const LONG: usize = 3 * PIECE_BYTES + 12;

fn values(peer: usize) -> Vec<u8> {
    (0..LONG).map(|i| (i * 7 + i / 1000 * peer + peer) as u8).collect()
}

fn sums() -> Vec<u8> {
    values(1).iter().zip(values(2)).map(|(a, b)| a.wrapping_add(b)).collect()
}

/// Runs an all-reduce whose input arrives as `next` says.
fn run_pipeline(
    engine: &Engine,
    next: Receiver<Result<(), CudaError>>,
    copies_max: usize,
) -> Result<PipelineResult<FakeOutput>, Error> {
    let descriptor = AllReduce::sum().descriptor(DType::U8, LONG as u64).unwrap();
    let call = engine.with(|driver| driver.start(Tag(0), descriptor, false, None))??;
    let pipeline = Pipeline { engine, call, waiting: Waiting::ToTheEnd };
    let open = |bytes| Some(FakeOutput { copied: Vec::new(), copies_max, _bytes: bytes });
    pipeline.run(&mut FakeInput::new(values(1), next), Memory::zeroed(LONG), open)
}

/// Whether ranges cover each byte once.
fn cover_all(mut ranges: Vec<Range<usize>>) -> bool {
    ranges.sort_by_key(|range| range.start);
    ranges.windows(2).all(|pair| pair[0].end == pair[1].start)
        && ranges.first().is_some_and(|first| first.start == 0)
        && ranges.last().is_some_and(|last| last.end == LONG)
}

#[test]
fn an_operation_begins_with_the_first_piece_and_delays_no_other() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    thread::scope(|scope| {
        let (arrive, next) = channel();
        let mine_too = mine.clone();
        let first = scope.spawn(move || run_pipeline(&mine_too, next, usize::MAX));
        let other = &other;
        let theirs = scope.spawn(move || {
            let mut data = values(2);
            other.all_reduce(&mut data, AllReduce::sum()).map(|_| data)
        });
        await_busy(&engine(other));
        arrive.send(Ok(())).unwrap();
        await_busy(&mine);
        for round in 0..3 {
            // Other operations run while this one waits for its input.
            let also = scope.spawn(move || other.all_reduce(&mut [1_u8; 4], AllReduce::sum().tag(9)));
            one.all_reduce(&mut [2_u8; 4], AllReduce::sum().tag(9)).unwrap();
            also.join().unwrap().unwrap();
            assert!(!first.is_finished() && !theirs.is_finished(), "after {round} pieces");
            arrive.send(Ok(())).unwrap();
        }
        let reduced = first.join().unwrap().unwrap();
        assert!(reduced.result.as_slice() == sums());
        assert_eq!(reduced.info.world, 2);
        assert!(cover_all(reduced.output.unwrap().copied));
        assert!(theirs.join().unwrap().unwrap() == sums());
    });
}

#[test]
fn an_output_that_fails_is_given_up() {
    let (_master, one, other) = pair();
    thread::scope(|scope| {
        let (arrive, next) = channel();
        (0..4).for_each(|_| arrive.send(Ok(())).unwrap());
        let theirs = scope.spawn(|| other.all_reduce(&mut values(2), AllReduce::sum()));
        let reduced = run_pipeline(&engine(&one), next, 0).unwrap();
        assert!(reduced.output.is_none() && reduced.result.as_slice() == sums());
        theirs.join().unwrap().unwrap();
    });
}

#[test]
fn an_input_that_fails_aborts_the_operation_for_all_and_the_next_one_runs() {
    let (_master, one, other) = pair();
    for pieces in 0..4 {
        thread::scope(|scope| {
            let (arrive, next) = channel();
            let theirs = scope.spawn(|| other.all_reduce(&mut values(2), AllReduce::sum()));
            // An operation that is decided before a peer calls is skipped there.
            await_busy(&engine(&other));
            (0..pieces).for_each(|_| arrive.send(Ok(())).unwrap());
            arrive.send(Err(CudaError::Unsupported("the test wants it".into()))).unwrap();
            let error = run_pipeline(&engine(&one), next, usize::MAX).err().unwrap();
            assert!(error.to_string().contains("the test wants it"), "{error}");
            assert!(matches!(theirs.join().unwrap(), Err(Error::Failed(Failure::Aborted(_)))));
        });
    }
    thread::scope(|scope| {
        let (arrive, next) = channel();
        (0..4).for_each(|_| arrive.send(Ok(())).unwrap());
        let theirs = scope.spawn(|| other.all_reduce(&mut values(2), AllReduce::sum()));
        assert!(run_pipeline(&engine(&one), next, usize::MAX).unwrap().result.as_slice() == sums());
        theirs.join().unwrap().unwrap();
    });
}

#[test]
fn an_operation_that_waits_for_its_input_ends_when_a_peer_is_lost() {
    let (_master, one, other) = pair();
    let mine = engine(&one);
    thread::scope(|scope| {
        let (arrive, next) = channel();
        let lost = scope.spawn(move || run_pipeline(&mine, next, usize::MAX).err().unwrap());
        arrive.send(Ok(())).unwrap();
        await_busy(&engine(&one));
        other.leave();
        (0..3).for_each(|_| arrive.send(Ok(())).unwrap());
        let error = lost.join().unwrap();
        assert!(matches!(error, Error::Failed(Failure::Aborted(_))), "{error}");
    });
}
