//! Entry points of the fuzz targets in `fuzz/`: decoders of what other processes send or write to shared memory.

use crate::channel::Handle;
use crate::channel::wire::Head;
use crate::limits::SHARED_RING_BYTES;
use crate::mesh::head::StreamHead;
use crate::relay::{RelayAnswer, RelayRequest};
use crate::segment::{Segment, Ticket};
use crate::shared_memory::FileTicket;
use crate::shared_ring::{
    BODY_BYTES_MAX, CellTracker, LinkDirection, RingReader, SEGMENT_BYTES, Word, format_segment,
};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// The name of a target, and its function: passes bytes to decoders, encodes and decodes again what they accept, and
/// returns whether any accepted them.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// The targets.
pub const DECODERS: &[Decoder] = &[
    ("channel", check_channel),
    ("stream_head", check_stream_head),
    ("relay", check_relay),
    ("shared_ring", check_shared_ring),
];

fn check_channel(bytes: &[u8]) -> bool {
    if let Some(bytes) = bytes.first_chunk() {
        assert_eq!(&Handle::decode(bytes).encode(), bytes);
    }
    let head = bytes.first_chunk().and_then(Head::decode);
    if let Some(head) = head {
        assert_eq!(Head::decode(&head.encode()), Some(head));
    }
    head.is_some()
}

fn check_stream_head(bytes: &[u8]) -> bool {
    if let Some(bytes) = bytes.first_chunk() {
        assert_eq!(&FileTicket::decode(bytes).encode(), bytes);
    }
    if let Some(ticket) = bytes.first_chunk().and_then(Ticket::decode) {
        assert_eq!(Ticket::decode(&ticket.encode()), Some(ticket));
    }
    let mut rest = bytes;
    let head = StreamHead::take(&mut rest);
    if let Some(Ok(head)) = head {
        let again = head.encode();
        assert_eq!(again.len(), bytes.len() - rest.len());
        assert_eq!(StreamHead::take(&mut &again[..]), Some(Ok(head)));
    }
    matches!(head, Some(Ok(_)))
}

fn check_relay(bytes: &[u8]) -> bool {
    let request = RelayRequest::take(&mut &bytes[..]);
    if let Some(Ok(request)) = request {
        assert_eq!(RelayRequest::take(&mut &request.encode()[..]), Some(Ok(request)));
    }
    let answer = RelayAnswer::take(&mut &bytes[..]);
    if let Some(Ok(answer)) = answer {
        assert_eq!(RelayAnswer::take(&mut &answer.encode()[..]), Some(Ok(answer)));
    }
    matches!(request, Some(Ok(_))) || matches!(answer, Some(Ok(_)))
}

/// Records in the memory of a link: two heads of the ring, which follow each other, and the bytes at its start.
#[derive(Debug)]
struct RingImage<'b> {
    heads: [u64; 2],
    bytes: &'b [u8],
}

/// Heads are counted in these units.
const LINE_BYTES: u64 = 64;

impl<'b> RingImage<'b> {
    fn of(input: &'b [u8]) -> Option<Self> {
        let ([a, b, c, d], bytes) = input.split_first_chunk()?;
        let head = |low, high| u64::from(u16::from_le_bytes([low, high])) * LINE_BYTES;
        Some(Self {
            heads: [head(*a, *b), head(*c, *d)],
            bytes: &bytes[..bytes.len().min(SHARED_RING_BYTES)],
        })
    }

    /// Reads all records. Returns whether there was one.
    fn read(&self, direction: &LinkDirection) -> bool {
        for word in [Word::Tail, Word::Returned] {
            direction.word(word).store(0, Ordering::Relaxed);
        }
        direction.ring(0, self.bytes.len()).copy_from(self.bytes);
        let (mut reader, tracker) =
            (RingReader::new(direction.clone()), Arc::new(CellTracker::new(direction.clone())));
        let (mut body, mut held, mut is_any) = ([0; BODY_BYTES_MAX], Vec::new(), false);
        'heads: for head in self.heads {
            direction.word(Word::Head).store(head, Ordering::Relaxed);
            loop {
                let Ok(record) = reader.pop(&mut body) else { break 'heads };
                let Some(record) = record else { break };
                is_any = true;
                assert!(record.body_bytes <= BODY_BYTES_MAX);
                if let Some((range, bytes)) = record.cells {
                    let Ok(cells) = tracker.take(range, bytes) else { break 'heads };
                    assert_eq!(cells.as_slice().len(), bytes);
                    core::hint::black_box(cells.as_slice().last());
                    held.push(cells);
                }
            }
        }
        static ZEROS: [u8; SHARED_RING_BYTES] = [0; SHARED_RING_BYTES];
        direction.ring(0, self.bytes.len()).copy_from(&ZEROS[..self.bytes.len()]);
        is_any
    }
}

fn link_direction() -> LinkDirection {
    let segment = Segment::create(SEGMENT_BYTES, false).expect("there is shared memory");
    format_segment(segment).expect("the segment has the size of a link").0
}

fn check_shared_ring(bytes: &[u8]) -> bool {
    thread_local! {
        static DIRECTION: LinkDirection = link_direction();
    }
    RingImage::of(bytes).is_some_and(|image| DIRECTION.with(|direction| image.read(direction)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::SegmentId;
    use crate::channel::wire::Body;
    use crate::memory::Lease;
    use crate::relay::RelayRole;
    use crate::shared_ring::RingWriter;
    use ringfold_fuzz::Seed;
    use ringfold_proto::id::PeerId;

    fn seeds() -> Vec<Seed> {
        let bodies = [
            Body::Put { segment: SegmentId(7), offset: 1 << 40, bytes: 4096 },
            Body::Signal { channel: 3, count: 9 },
            Body::Word { segment: SegmentId(5), offset: 8 },
            Body::Ask { number: 2 },
            Body::Answer { number: u64::MAX },
            Body::Goodbye,
            Body::Abort { bytes: 100 },
        ];
        let channel = bodies.map(|body| ("channel", Head { place: 8, body }.encode().to_vec()));
        let ticket = Ticket { pid: 1, fd: 2, bytes: 3, nonce: [4; 16] };
        let heads = [
            StreamHead::single(7),
            StreamHead::guarded(7, 1),
            StreamHead { offer: Some(ticket), ..StreamHead::single(9) },
        ];
        let requests = [RelayRole::Dial, RelayRole::Await]
            .map(|role| RelayRequest { role, other: PeerId(7 << 100) }.encode().to_vec());
        let answers = [RelayAnswer::Joined, RelayAnswer::Full].map(|answer| answer.encode().to_vec());
        let heads = heads.iter().map(|head| ("stream_head", head.encode()));
        let relay = requests.into_iter().chain(answers).map(|bytes| ("relay", bytes));
        channel.into_iter().chain(heads).chain(relay).chain([ring_seed(40), ring_seed(900)]).collect()
    }

    fn ring_seed(body_bytes: usize) -> Seed {
        let direction = link_direction();
        let mut writer = RingWriter::new(direction.clone());
        for payload in [None, Some(Lease::from(vec![1; 100_000])), Some(Lease::from(vec![2]))] {
            assert!(writer.put(&vec![9; body_bytes], payload.as_ref()).unwrap());
        }
        let head = direction.word(Word::Head).load(Ordering::Relaxed);
        let mut bytes = vec![0; head as usize];
        direction.ring(0, bytes.len()).copy_to(&mut bytes);
        let lines = ((head / LINE_BYTES) as u16).to_le_bytes();
        ("shared_ring", [&lines[..], &lines, &bytes].concat())
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn changed_inputs_of_the_corpus_are_survived() {
        ringfold_fuzz::test_decoders(DECODERS, &seeds());
    }
}
