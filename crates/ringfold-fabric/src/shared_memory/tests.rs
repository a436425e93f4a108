use super::*;
use std::fs::File;

#[test]
fn what_others_write_is_in_the_memory() {
    let made = SharedMemory::create(10_000).unwrap();
    let mapped = MappedMemory::open(&made.ticket().unwrap()).unwrap();
    mapped.write(9_990, b"ten bytes!");
    let (mut memory, _file) = made.into_parts();
    let mut bytes = [0; 10_000];
    memory.read(0, &mut bytes);
    assert_eq!(&bytes[9_990..], b"ten bytes!");
    mapped.set_word(8, 77);
    memory.read(8, &mut bytes[..8]);
    assert_eq!(bytes[..8], 77_u64.to_ne_bytes());
    drop(memory);
    let mut again = [0; 3];
    mapped.read(9_990, &mut again);
    assert_eq!(&again, b"ten");
}

#[test]
fn memory_may_begin_anywhere_in_a_file() {
    let mut made = SharedMemory::create(20_000).unwrap();
    let whole = made.ticket().unwrap();
    let part = FileTicket { offset: 5_003, bytes: 100, ..whole };
    let mapped = MappedMemory::open(&part).unwrap();
    assert_eq!((mapped.len(), mapped.offset()), (100, 5_003));
    mapped.write(99, &[7]);
    let mut byte = [0];
    made.memory.read(5_102, &mut byte);
    assert_eq!(byte, [7]);
    let none = MappedMemory::open(&FileTicket { offset: 20_000, bytes: 0, ..whole }).unwrap();
    none.write(0, &[]);
}

#[test]
#[should_panic(expected = "not within 100 bytes")]
fn nothing_is_written_beyond_the_memory() {
    let made = SharedMemory::create(20_000).unwrap();
    let part = FileTicket { bytes: 100, ..made.ticket().unwrap() };
    MappedMemory::open(&part).unwrap().write(1, &[0; 100]);
}

#[test]
fn only_the_right_file_is_opened() {
    let made = SharedMemory::create(4096).unwrap();
    let right = made.ticket().unwrap();
    let device = File::open("/dev/null").unwrap();
    let other = SharedMemory::create(4096).unwrap();
    for wrong in [
        FileTicket { inode: right.inode ^ 1, ..right },
        FileTicket { device: right.device ^ 1, ..right },
        FileTicket { bytes: 4097, ..right },
        FileTicket { offset: u64::MAX, ..right },
        FileTicket { bytes: u64::MAX, offset: 1, ..right },
        FileTicket { fd: device.as_raw_fd() as u32, ..right },
        FileTicket { fd: other.file.as_raw_fd() as u32, ..right },
        FileTicket { pid: u32::MAX, ..right },
    ] {
        assert!(MappedMemory::open(&wrong).is_err(), "{wrong:?}");
    }
    assert!(MappedMemory::open(&right).is_ok());
    assert_eq!(FileTicket::decode(&right.encode()), right);
}

/// In a process of its own: if the file were mapped, the signal would end it.
#[test]
fn a_file_that_can_shrink_is_neither_offered_nor_mapped() {
    const CHILD: &str = "RINGFOLD_TEST_UNSEALED";
    const NAME: &str = "shared_memory::tests::a_file_that_can_shrink_is_neither_offered_nor_mapped";
    if std::env::var(CHILD).is_err() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child.args([NAME, "--exact"]).env(CHILD, "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let file = File::from(rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(8192).unwrap();
    let found = rustix::fs::fstat(&file).unwrap();
    let (pid, fd) = (std::process::id(), file.as_raw_fd() as u32);
    let ticket = FileTicket { pid, fd, device: found.st_dev, inode: found.st_ino, offset: 0, bytes: 8192 };
    if let Ok(mapped) = MappedMemory::open(&ticket) {
        file.set_len(0).unwrap();
        mapped.read(0, &mut [0]);
    }
    assert!(MappedMemory::open(&ticket).unwrap_err().to_string().contains("F_SEAL_SHRINK"));
    assert!(SharedMemory::of(Memory::zeroed(8192), file.into(), 0).ticket().is_err());
}

#[test]
fn memory_outside_of_the_file_gets_no_ticket() {
    let file = SharedMemory::create(10).unwrap().into_parts().1;
    assert!(SharedMemory::of(Memory::zeroed(11), file, 0).ticket().is_err());
}
