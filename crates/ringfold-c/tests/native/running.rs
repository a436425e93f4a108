//! Running programs. Each has a deadline, and none outlives its test.

use crate::compiler::{self, Language, Source};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A process. Dropping it kills it.
pub struct Running {
    child: Child,
    what: String,
    output: PathBuf,
    errors: PathBuf,
}

impl Running {
    /// Starts a program; its input stays open until it is waited for.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        Self::start_with(program, arguments, &[])
    }

    /// As [`Running::start`], with these environment variables.
    pub fn start_with(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = program.file_name().unwrap().to_string_lossy();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = |kind| compiler::scratch().join(format!("{name}-{}-{number}.{kind}", std::process::id()));
        let (output, errors) = (log("out"), log("err"));
        let child = Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", compiler::runtime_libraries())
            .env("PCCL_LOG_LEVEL", "INFO")
            .env_remove("PCCL_JOIN_TOKEN")
            .env_remove("PCCL_JOIN_TOKEN_FILE")
            .env_remove("RINGFOLD_MASTERS")
            .env_remove("RINGFOLD_CONFIG")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        Self { child, what: format!("{name} {}", arguments.join(" ")), output, errors }
    }

    /// Ends its input.
    pub fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Ends its input, and waits for an end with exit code 0.
    pub fn succeed(mut self, timeout: Duration) {
        self.end_input();
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) if status.success() => return,
                Some(status) => panic!("{} ended with {status}\n{}", self.what, self.output()),
                None if Instant::now() >= deadline => {
                    panic!("{} did not end within {timeout:?}\n{}", self.what, self.output())
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until it has printed this.
    pub fn wait_for(&mut self, words: &str, timeout: Duration) {
        self.wait_until(words, timeout, Self::printed);
    }

    /// Waits until this is in its log, or another error.
    pub fn wait_for_error(&mut self, words: &str, timeout: Duration) {
        self.wait_until(words, timeout, |process| fs::read_to_string(&process.errors).unwrap_or_default());
    }

    fn wait_until(&mut self, words: &str, timeout: Duration, printed: impl Fn(&Self) -> String) {
        let deadline = Instant::now() + timeout;
        while !printed(self).contains(words) {
            let ended = self.child.try_wait().unwrap();
            let waits = ended.is_none() && Instant::now() < deadline;
            assert!(waits, "{} did not print {words:?}: {ended:?}\n{}", self.what, self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn output(&self) -> String {
        let errors = fs::read_to_string(&self.errors).unwrap_or_default();
        format!("-- output\n{}-- errors\n{errors}", self.printed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let _ = fs::remove_file(&self.output);
            let _ = fs::remove_file(&self.errors);
        }
    }
}

/// A master process.
pub struct RunningMaster {
    pub process: Running,
    /// Where it listens.
    pub address: String,
}

impl RunningMaster {
    /// Starts a master on this port of 127.0.0.1; 0 is any.
    pub fn start(port: u16) -> Self {
        Self::start_with(port, &[])
    }

    /// As [`RunningMaster::start`], with these environment variables.
    pub fn start_with(port: u16, environment: &[(&str, &str)]) -> Self {
        let program = Source::program("master.c", Language::C99).compile();
        let mut process = Running::start_with(&program, &[&port.to_string()], environment);
        process.wait_for("\n", Duration::from_secs(20));
        let address = format!("127.0.0.1:{}", process.printed().trim());
        Self { process, address }
    }

    /// Interrupts it, and waits for its end.
    pub fn stop(self) {
        self.process.succeed(Duration::from_secs(20));
    }
}
