//! The default name of a process in errors.

/// The name of this host; empty if it is not known.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Host name and process id; if longer than `bytes_max`, only the end of it.
pub(crate) fn process_name(bytes_max: usize) -> String {
    let host = host_name();
    let mut name = format!("{}:{}", if host.is_empty() { "peer" } else { &host }, std::process::id());
    while name.len() > bytes_max {
        name.remove(0);
    }
    name
}
