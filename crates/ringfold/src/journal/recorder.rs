//! The flight recorder: the last records of this process, in a file that outlives it.

use super::{Record, SourceKind, record};
use crate::process_name::host_name;
use crate::settings::{Settings, table};
use parking_lot::Mutex;
use ringfold_fabric::clock;
use ringfold_fabric::flight_file::{self, FlightFile};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Files of ended processes that are kept in a directory.
const ENDED_FILES_MAX: usize = 32;

/// The recorder of the process.
#[derive(Debug)]
pub(super) struct Recorder {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None after a write has failed.
    file: Option<FlightFile>,
    /// The number of the next record.
    next: u64,
    line: Vec<u8>,
}

impl Recorder {
    pub(super) fn record(&self, record: &Record) {
        self.write(|line, number| record.write_line(line, Some(number)));
    }

    fn write(&self, append: impl FnOnce(&mut Vec<u8>, u64)) {
        let mut state = self.state.lock();
        let State { file: Some(file), next, line } = &mut *state else { return };
        line.clear();
        append(line, *next);
        *next += 1;
        if let Err(error) = file.write(line) {
            let path = file.path().to_owned();
            state.file = None;
            // The log may record as well.
            drop(state);
            tracing::warn!("the flight recorder {} has ended: {error}", path.display());
        }
    }
}

/// The recorder of this process: not opened, opened, or failed.
struct Process {
    /// The process that opened it: a forked child opens its own.
    pid: u32,
    recorder: Option<Arc<Recorder>>,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

/// Records a line of a log that has no typed event, if the recorder is open.
pub fn record_text(
    level: &str,
    target: &str,
    message: &str,
    fields: &serde_json::Map<String, serde_json::Value>,
) {
    let process = PROCESS.lock();
    let ours = process.as_ref().filter(|process| process.pid == std::process::id());
    let Some(recorder) = ours.and_then(|process| process.recorder.clone()) else { return };
    drop(process);
    recorder.write(|line, number| {
        record::write_text_line(line, Some(number), level, target, message, fields);
    });
}

/// The recorder of this process, opened if there is to be one. A failure is logged once.
///
/// The file is `KIND-HOST-PID.flight` in the directory of the settings. Its lines are JSON; `ringfold replay` reads it. At most 32
/// files of ended processes are kept in a directory.
pub(super) fn open(kind: SourceKind, settings: &Settings) -> Option<Arc<Recorder>> {
    let directory = settings.path(&table::FLIGHT_DIR)?;
    let mut process = PROCESS.lock();
    let pid = std::process::id();
    if let Some(process) = process.as_ref().filter(|process| process.pid == pid) {
        return process.recorder.clone();
    }
    let bytes = settings.number(&table::FLIGHT_BYTES).unwrap_or(flight_file::BYTES_MIN as usize);
    let opened = create(kind, directory, bytes as u64);
    let recorder = opened.as_ref().ok().cloned();
    *process = Some(Process { pid, recorder: recorder.clone() });
    drop(process);
    if let Err(error) = opened {
        tracing::warn!(
            "there is no flight recorder: failed to create a file in {}: {error}",
            directory.display()
        );
    }
    recorder
}

pub(super) fn create(kind: SourceKind, directory: &Path, bytes: u64) -> io::Result<Arc<Recorder>> {
    let pid = std::process::id();
    let host_name = host_name();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain: String = host_name.chars().take(64).map(|c| if is_plain(c) { c } else { '_' }).collect();
    let mut time = Vec::new();
    ringfold_flight::append_time(&mut time, SystemTime::now());
    let program = std::env::current_exe().unwrap_or_default();
    let program =
        program.file_name().unwrap_or_default().to_string_lossy().chars().take(64).collect::<String>();
    // Processes with the same one have the same clocks.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let header = serde_json::json!({
        "flight": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "host": host_name.chars().take(64).collect::<String>(),
        "boot": boot.trim(),
        "pid": pid,
        "program": program,
        "time": String::from_utf8_lossy(&time),
        "monotonic_us": clock::since_boot().as_micros() as u64,
    });
    let file =
        FlightFile::create(directory, &format!("{}-{plain}-{pid}", kind.name()), bytes, &header.to_string())?;
    flight_file::prune(directory, ENDED_FILES_MAX);
    Ok(Arc::new(Recorder { state: Mutex::new(State { file: Some(file), next: 0, line: Vec::new() }) }))
}
