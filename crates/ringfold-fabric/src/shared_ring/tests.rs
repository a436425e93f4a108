use super::*;
use crate::limits::SHARED_CELL_BYTES;
use crate::memory::Lease;
use crate::segment::Segment;
use std::sync::Arc;

/// Two mappings of one segment; the direction that the first one writes.
fn ends() -> (RingWriter, RingReader, Arc<CellTracker>) {
    let segment = Segment::create(SEGMENT_BYTES, false).unwrap();
    let opened = Segment::open(&segment.ticket()).unwrap();
    let (out, inward) = (format_segment(segment).unwrap().0, open_segment(opened).unwrap().0);
    (RingWriter::new(out), RingReader::new(inward.clone()), Arc::new(CellTracker::new(inward)))
}

#[test]
fn records_and_payloads_arrive_whole_while_both_ends_work() {
    let records: u32 = if cfg!(miri) { 40 } else { 20_000 };
    let (mut writer, mut reader, tracker) = ends();
    // Short records without cells, and payloads of one cell or more, so that the ring and the cells range out.
    let bytes = |number: u32| {
        if number.is_multiple_of(3) { 0 } else { number as usize * 37 % (SHARED_CELL_BYTES / 64) + 1 }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..records {
                let payload = vec![number as u8; bytes(number)];
                let payload = (!payload.is_empty()).then(|| Lease::from(payload));
                while !writer.put(&number.to_le_bytes(), payload.as_ref()).unwrap() {
                    writer.refresh().unwrap();
                    std::thread::yield_now();
                }
            }
        });
        let mut held = Vec::new();
        let mut body = [0; BODY_BYTES_MAX];
        for number in 0..records {
            let record = loop {
                match reader.pop(&mut body).unwrap() {
                    Some(record) => break record,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(body[..record.body_bytes], number.to_le_bytes());
            let Some((range, length)) = record.cells else {
                assert_eq!(bytes(number), 0);
                continue;
            };
            let cells = tracker.take(range, length).unwrap();
            assert_eq!(length, bytes(number));
            let mut copy = vec![0; cells.len()];
            cells.read(&mut copy);
            assert!(copy == cells.as_slice() && copy.iter().all(|byte| *byte == number as u8));
            held.push(cells);
            if held.len() > 5 {
                held.clear();
            }
        }
    });
}
