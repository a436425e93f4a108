use super::*;

fn full() -> MemoryRecord {
    let mut handle = [7; Handle::BYTES];
    handle[8..].copy_from_slice(&4096_u64.to_le_bytes());
    MemoryRecord {
        host: 1,
        process: 2 << 100,
        port: 3 << 90,
        id: 4,
        address: 5 << 40,
        bytes: 4096,
        transports: TransportFlags::from_bits(7).unwrap(),
        is_device: true,
        file: Some(FileTicket { pid: 1, fd: 2, device: 3, inode: 4, offset: 5, bytes: 4096 }),
        segment: Some(Handle::decode(&handle)),
        ipc: Some(vec![9; 88]),
    }
}

/// A record with and one without the parts that may be missing.
pub(crate) fn examples() -> [MemoryRecord; 2] {
    [full(), MemoryRecord { is_device: false, file: None, segment: None, ipc: None, ..full() }]
}

#[test]
fn records_round_trip() {
    for record in examples() {
        assert_eq!(MemoryRecord::decode(&record.encode()), Some(record));
    }
}

#[test]
fn truncated_or_extended_records_are_rejected() {
    let bytes = full().encode();
    for length in 0..bytes.len() {
        assert_eq!(MemoryRecord::decode(&bytes[..length]), None, "{length}");
    }
    assert_eq!(MemoryRecord::decode(&[bytes, vec![0]].concat()), None);
}

#[test]
fn a_record_with_a_flipped_bit_is_rejected_or_valid() {
    let bytes = full().encode();
    for bit in 0..bytes.len() * 8 {
        let mut other = bytes.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        if let Some(read) = MemoryRecord::decode(&other) {
            assert_eq!(read.encode(), other, "bit {bit}");
        }
    }
}

#[test]
fn contradictory_sizes_are_rejected() {
    assert_eq!(MemoryRecord::decode(&MemoryRecord { bytes: 4097, ..full() }.encode()), None);
    assert_eq!(MemoryRecord::decode(&MemoryRecord { address: u64::MAX - 5, ..full() }.encode()), None);
    assert_eq!(MemoryRecord::decode(&MemoryRecord { ipc: Some(vec![1; 257]), ..full() }.encode()), None);
}
