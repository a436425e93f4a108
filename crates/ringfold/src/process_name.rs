//! The default name of a process in errors.

/// Host name and process id; if longer than `bytes_max`, only the end of it.
pub(crate) fn process_name(bytes_max: usize) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let mut name = format!("{}:{}", if host.is_empty() { "peer" } else { host }, std::process::id());
    while name.len() > bytes_max {
        name.remove(0);
    }
    name
}
