use super::*;
use crate::limits::SHARED_CELL_BYTES;
use crate::segment::Segment;
use std::sync::Arc;

/// Two mappings of one segment; the direction that the first one writes.
fn ends() -> (Outlet, Inlet, Arc<Tenancy>) {
    let segment = Segment::create(SEGMENT_BYTES, false).unwrap();
    let opened = Segment::open(&segment.ticket()).unwrap();
    let (out, inward) = (lay_out(segment).unwrap().0, find(opened).unwrap().0);
    (Outlet::new(out), Inlet::new(inward.clone()), Arc::new(Tenancy::new(inward)))
}

#[test]
fn records_and_payloads_arrive_whole_while_both_ends_work() {
    let records: u32 = if cfg!(miri) { 40 } else { 20_000 };
    let (mut outlet, mut inlet, tenancy) = ends();
    // Short records without cells, and payloads of one cell or more, so that the ring and the cells run out.
    let bytes = |number: u32| {
        if number.is_multiple_of(3) { 0 } else { number as usize * 37 % (SHARED_CELL_BYTES / 64) + 1 }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..records {
                let payload = vec![number as u8; bytes(number)];
                while !outlet.put(&number.to_le_bytes(), Source::from(&payload[..])).unwrap() {
                    outlet.refresh().unwrap();
                    std::thread::yield_now();
                }
            }
        });
        let mut held = Vec::new();
        let mut body = [0; BODY_BYTES_MAX];
        for number in 0..records {
            let record = loop {
                match inlet.pop(&mut body).unwrap() {
                    Some(record) => break record,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(body[..record.body_bytes], number.to_le_bytes());
            let Some((run, length)) = record.cells else {
                assert_eq!(bytes(number), 0);
                continue;
            };
            let cells = tenancy.take(run, length).unwrap();
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
