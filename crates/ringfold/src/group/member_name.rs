//! The names of ranks in errors, and what the system says of their processes.

use crate::process_name::process_name;
use ringfold_proto::limits::NAME_BYTES_MAX;

/// The name of a rank of this process: the rank, the host, and the process id.
pub(super) fn member_name(rank: usize) -> String {
    let rank = format!("rank {rank}");
    let process = process_name(NAME_BYTES_MAX - rank.len() - " ()".len());
    format!("{rank} ({process})")
}

/// Whether the process of a rank on this host is stopped, by a signal or a debugger. False if that cannot be told.
pub(super) fn is_stopped(name: &str) -> bool {
    let stat = process_id(name).and_then(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok());
    // The name of the program, in parentheses, may contain anything.
    let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    matches!(state, Some('T' | 't'))
}

/// The process id in the name of a rank.
fn process_id(name: &str) -> Option<u32> {
    name.strip_suffix(')')?.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_id_of_the_process() {
        let name = member_name(7);
        assert!(name.starts_with("rank 7 ("), "{name}");
        assert_eq!(process_id(&name), Some(std::process::id()));
        assert!(!is_stopped(&name), "this process runs");
        for other in ["", "rank 7", "rank 7 (host)", "rank 7 (host:x)", "rank 7 (host:1) "] {
            assert_eq!(process_id(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_process_that_got_a_stop_signal_is_stopped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let name = format!("rank 0 (here:{})", child.id());
        assert!(!is_stopped(&name));
        let signal = |signal: &str| {
            let id = child.id().to_string();
            assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        };
        signal("-STOP");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !is_stopped(&name) {
            assert!(std::time::Instant::now() < end, "the process does not count as stopped");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(&name));
    }
}
