use super::*;

fn ticket(buffer: &SharedBuffer) -> Ticket {
    BufferRange::of(buffer.as_slice()).unwrap().ticket
}

#[test]
fn others_read_what_the_owner_writes() {
    let mut buffer = SharedBuffer::zeroed(10_000).unwrap();
    let mapped = MappedBuffer::open(&ticket(&buffer)).unwrap();
    assert!(mapped.payload(0, 10_000).unwrap().iter().all(|byte| *byte == 0));
    buffer.as_mut_slice()[9_990..].copy_from_slice(b"ten bytes!");
    assert_eq!(mapped.payload(9_990, 10).unwrap(), b"ten bytes!");
    assert_eq!(mapped.payload(10_000, 0).unwrap(), b"");
    for (offset, bytes) in [(0, 10_001), (10_000, 1), (u64::MAX, 1), (1, usize::MAX), (u64::MAX - 4095, 1)] {
        assert!(mapped.payload(offset, bytes).is_none(), "{bytes} bytes at {offset}");
    }
}

#[test]
fn ranges_are_found_by_their_address() {
    let (one, other) = (SharedBuffer::zeroed(5000).unwrap(), SharedBuffer::zeroed(1).unwrap());
    let whole = BufferRange::of(one.as_slice()).unwrap();
    assert_eq!(BufferRange::of(&one.as_slice()[4321..]), Some(BufferRange { offset: 4321, ..whole }));
    assert_ne!(ticket(&other), whole.ticket);
    assert_eq!(BufferRange::of(&[1, 2, 3]), None);
    let part = one.as_slice();
    // SAFETY: only the address is used; a page is mapped as a whole.
    let beyond = unsafe { core::slice::from_raw_parts(part.as_ptr(), 5001) };
    assert_eq!(BufferRange::of(beyond), None);
}

#[test]
fn a_freed_buffer_is_not_found_and_its_readers_learn_it() {
    let buffer = SharedBuffer::zeroed(100).unwrap();
    let (start, ticket) = (buffer.as_ptr(), ticket(&buffer));
    let mapped = MappedBuffer::open(&ticket).unwrap();
    assert!(!mapped.is_freed());
    drop(buffer);
    assert!(mapped.is_freed());
    assert!(mapped.payload(0, 100).is_some());
    assert!(MappedBuffer::open(&ticket).is_err());
    assert!(!BUFFERS.read().values().any(|listed| listed.ticket == ticket), "{start:?}");
}

#[test]
fn only_the_right_file_is_opened() {
    let buffer = SharedBuffer::zeroed(100).unwrap();
    let right = ticket(&buffer);
    for wrong in [
        Ticket { nonce: [7; 16], ..right },
        Ticket { bytes: right.bytes - 1, ..right },
        Ticket { bytes: right.bytes + 4096, ..right },
        Ticket { bytes: u64::MAX, ..right },
        Ticket { bytes: 0, ..right },
        Ticket { fd: u32::MAX, ..right },
        Ticket { pid: u32::MAX, ..right },
    ] {
        assert!(MappedBuffer::open(&wrong).is_err(), "{wrong:?}");
    }
    let small = Segment::create(100, true).unwrap();
    assert!(MappedBuffer::open(&small.ticket()).unwrap_err().to_string().contains("too small"));
    assert!(MappedBuffer::open(&right).is_ok());
}

#[test]
fn elements_and_memory_are_those_of_the_buffer() {
    let mut buffer = SharedBuffer::zeroed(17).unwrap();
    buffer.elements_mut::<u64>()[1] = 7;
    assert_eq!((buffer.elements::<u64>(), buffer.as_slice()[8]), (&[0, 7][..], 7));
    let start = buffer.as_ptr();
    let memory = Memory::from(buffer);
    assert_eq!((memory.as_slice().as_ptr(), memory.len(), memory.as_slice()[8]), (start, 17, 7));
    assert!(BufferRange::of(memory.as_slice()).is_some());
    let empty = SharedBuffer::zeroed(0).unwrap();
    assert!(empty.is_empty() && BufferRange::of(empty.as_slice()).is_none());
    assert!(Memory::from(empty).is_empty());
}

#[test]
fn sizes_that_no_machine_has_are_errors() {
    for bytes in [usize::MAX, usize::MAX - 4096, 1 << 50] {
        let error = SharedBuffer::zeroed(bytes).unwrap_err().to_string();
        assert!(error.contains("bytes of shared memory are wanted"), "{error}");
    }
}
