use super::*;

fn byte(segment: &Segment, at: usize) -> u8 {
    let mut byte = [0];
    segment.bytes().part(at..at + 1).copy_to(&mut byte);
    byte[0]
}

#[test]
fn what_one_mapping_writes_the_other_reads() {
    let made = Segment::create(10_000, true).unwrap();
    let opened = Segment::open(&made.ticket()).unwrap();
    assert_ne!(made.mapping.base, opened.mapping.base);
    assert_eq!((made.len(), opened.len()), (10_000, 10_000));
    assert_eq!(byte(&opened, 9_999), 0);
    made.bytes().part(9_999..10_000).copy_from(&[7]);
    assert_eq!(byte(&opened, 9_999), 7);
    drop(made);
    assert_eq!(byte(&opened, 9_999), 7, "the mapping outlives its creator");
    assert!(Segment::open(&opened.ticket()).is_err(), "its creator has dropped it");
}

#[test]
fn only_the_right_segment_is_opened() {
    let made = Segment::create(4096, true).unwrap();
    let right = made.ticket();
    let nonce = { right.nonce.map(|byte| byte ^ 1) };
    let plain = File::open("/proc/self/exe").unwrap();
    let loose = rustix::fs::memfd_create("ringfold", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 4096).unwrap();
    for wrong in [
        Ticket { nonce, ..right },
        Ticket { bytes: 8192, ..right },
        Ticket { bytes: 0, ..right },
        Ticket { bytes: u64::MAX, ..right },
        Ticket { fd: 9999, ..right },
        Ticket { fd: plain.as_raw_fd() as u32, ..right },
        Ticket { fd: loose.as_raw_fd() as u32, nonce: [0; 16], ..right },
        Ticket { pid: u32::MAX, ..right },
    ] {
        assert!(Segment::open(&wrong).is_err(), "{wrong:?}");
    }
    assert!(Segment::open(&right).is_ok());
}

#[test]
fn a_segment_keeps_its_size() {
    let made = Segment::create(4096, true).unwrap();
    let path = format!("/proc/self/fd/{}", made.ticket().fd);
    let file = File::options().write(true).open(path).unwrap();
    assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
    assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    assert!(Segment::create(0, true).is_err() && Segment::create(usize::MAX, true).is_err());
}

#[test]
fn another_process_opens_it() {
    const TICKET: &str = "RINGFOLD_TEST_SEGMENT";
    const NAME: &str = "segment::tests::another_process_opens_it";
    if let Ok(text) = std::env::var(TICKET) {
        let bytes: Vec<u8> = text.split(',').map(|byte| byte.parse().unwrap()).collect();
        let opened = Segment::open(&Ticket::decode(&bytes.try_into().unwrap()).unwrap()).unwrap();
        opened.bytes().part(100..101).copy_from(&[42]);
        return;
    }
    let made = Segment::create(4096, true).unwrap();
    let text = made.ticket().encode().map(|byte| byte.to_string()).join(",");
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact"])
        .env(TICKET, text)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(byte(&made, 100), 42);
}

#[test]
fn a_ticket_is_encoded_and_decoded() {
    let ticket = Ticket { pid: 7, fd: 9, bytes: 1 << 40, nonce: [3; 16] };
    assert_eq!(Ticket::decode(&ticket.encode()), Some(ticket));
    let mut other = ticket.encode();
    other[7] = b'2';
    assert_eq!(Ticket::decode(&other), None);
}
