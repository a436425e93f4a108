use super::*;

/// Does what a kernel does that times out.
fn time_out(page: &HostWords, number: u32, peer: i32, waited: Duration) {
    page.word(WAITED_NS).store(nanoseconds(waited), Ordering::Relaxed);
    page.word(ERROR_WORD).store(u64::from(peer as u32) << 32 | u64::from(number), Ordering::Relaxed);
    write_all(page, FLAG, 2);
}

#[test]
fn the_host_reads_the_error_of_a_kernel() {
    let page = HostWords::plain(ABORT_PAGE_BYTES);
    assert_eq!(read_error(&page), None);
    time_out(&page, 1, 3, Duration::from_secs(300));
    let error = read_error(&page).unwrap();
    assert_eq!(error.to_string(), "a kernel timed out after 300 s waiting for a signal from rank 3");
    time_out(&page, 2, -1, Duration::from_millis(500));
    let error = read_error(&page).unwrap();
    assert_eq!(error.to_string(), "a kernel timed out after 0.500 s waiting for room in the FIFO of a proxy");
    time_out(&page, 7 | 1234 << 8, -1, Duration::ZERO);
    let error = read_error(&page).unwrap();
    assert_eq!(error.to_string(), "an assertion in a kernel failed (line 1234)");
    time_out(&page, 99, -1, Duration::ZERO);
    assert_eq!(read_error(&page).unwrap().what, DeviceWait::Unknown(99));
}

#[test]
fn the_first_reason_is_kept_and_the_process_page_is_cleared_with_the_last_aborted_port() {
    // All tests share the process's page; only this one sets pages.
    let (one, other, third) = (AbortPage::open(), AbortPage::open(), AbortPage::open());
    one.set("rank 1 was lost");
    one.set("something else");
    other.set("rank 2 was lost");
    assert_eq!(one.reason().as_deref(), Some("rank 1 was lost"));
    assert!(one.is_set() && other.is_set() && !third.is_set());
    assert!(process_page().is_set());
    drop(one);
    assert!(process_page().is_set());
    drop(other);
    assert!(!process_page().is_set());
    assert_eq!((process_page().reason(), third.reason()), (None, None));
    // A standalone page does not affect the process's page.
    let alone = AbortPage::standalone();
    alone.set("a collective failed");
    assert!(alone.is_set() && !process_page().is_set() && !third.is_set());
}
