//! Tests of `ringfold config`, and of settings by flag, variable and file.

use crate::process::{Process, RINGFOLD, command, output};
use ringfold::Communicator;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Command;

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringfold-config-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The exit code, standard output and standard error.
fn end(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn show_prints_each_value_and_its_source() {
    let file = File::new("show", "silence_max = \"9s\"\n[peer]\nredial = 0.5\n[master]\nwait_max = \"1h\"\n");
    let arguments = ["config", "show", "--config", file.path(), "--set", "tour_max=2s"];
    let mut show = command(RINGFOLD, &arguments);
    show.env("RINGFOLD_HEARTBEAT", "750ms").env("PCCL_JOIN_TOKEN", "sesame");
    let shown = end(show.args(["--for", "master", "--json"]));
    assert_eq!(shown.0, Some(0), "{}", shown.2);
    assert!(!shown.1.contains("sesame"));
    let rows: serde_json::Value = serde_json::from_str(&shown.1).unwrap();
    let found = |name: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        (row["value"].as_str().unwrap_or("-").to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let from = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(found("heartbeat"), from("750ms", "RINGFOLD_HEARTBEAT"));
    assert_eq!(found("silence_max"), from("9s", &format!("{}:1", file.path())));
    assert_eq!(found("wait_max"), from("1h", &format!("{}:5", file.path())));
    assert_eq!(found("tour_max"), from("2s", "--set tour_max"));
    assert_eq!(found("join_token"), from("(set)", "PCCL_JOIN_TOKEN"));
    assert_eq!(found("recover"), from("newest", "default"));
    assert_eq!(found("http"), from("-", "default"));
}

#[test]
fn show_prints_a_table_of_all_settings() {
    let (code, out, err) = end(&mut command(RINGFOLD, &["config", "show", "--set", "quic=false"]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.lines().count(), ringfold::settings::table::ALL.len() + 1, "{out}");
    let line = out.lines().find(|line| line.starts_with("quic ")).unwrap();
    assert!(
        line.contains("false") && line.contains("--set quic") && line.ends_with("QUIC over UDP."),
        "{line}"
    );
}

#[test]
fn errors_name_what_is_unknown_or_invalid_and_the_nearest_name() {
    let file = File::new("wrong", "\nhearbeat = 1\n[relay]\nlisten = [\"a:b\"]\n");
    let (code, _, err) = end(&mut command(RINGFOLD, &["config", "check", file.path()]));
    assert_eq!(code, Some(1));
    assert!(
        err.contains(&format!("{}:2: unknown key \"hearbeat\": did you mean \"heartbeat\"?", file.path())),
        "{err}"
    );
    assert!(err.contains(&format!("{}:4: invalid listen \"a:b\"", file.path())), "{err}");
    let (code, _, err) = end(command(RINGFOLD, &["master"]).env("RINGFOLD_CONFIG", file.path()));
    assert_eq!(code, Some(1));
    assert!(err.contains("RINGFOLD_CONFIG") && err.contains(":2: unknown key"), "{err}");
    let right = File::new("right", "heartbeat = \"1s\"\n");
    let (code, out, err) = end(&mut command(RINGFOLD, &["config", "check", right.path()]));
    assert_eq!(
        (code, out.as_str()),
        (Some(0), format!("{}: 1 valid settings\n", right.path()).as_str()),
        "{err}"
    );
    for (arguments, code, why) in [
        (
            &["master", "--set", "hartbeat=1s"][..],
            1,
            "unknown setting \"hartbeat\": did you mean \"heartbeat\"?",
        ),
        (
            &["relay", "--set", "recover=manual"],
            1,
            "unknown setting \"recover\" of a relay: it is one of master",
        ),
        (&["master", "--set", "heartbeat=2s"], 1, "must be at least 2 x heartbeat 2s (--set heartbeat)"),
        (&["master", "--recover", "oldest"], 2, "must be one of newest, majority, manual"),
        (&["master", "--recover-after", "soon"], 2, "must be a time"),
        (&["master", "--hartbeat", "1s"], 2, "unexpected argument"),
    ] {
        let ended = output(RINGFOLD, arguments);
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {err}");
        assert!(err.contains(why), "{arguments:?}: {err}");
    }
    let (code, _, err) = end(command(RINGFOLD, &["master"]).env("RINGFOLD_INSECURE", "maybe"));
    assert_eq!(code, Some(1));
    assert!(err.contains("invalid RINGFOLD_INSECURE \"maybe\": must be true"), "{err}");
}

#[test]
fn a_master_takes_its_address_from_a_file_and_warns_of_unknown_variables_once() {
    let file = File::new("listen", "[master]\nlisten = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\npeers_max = 1\n");
    let mut started = command(RINGFOLD, &["master", "--config", file.path()]);
    started.env("RINGFOLD_HEARTBAET", "1s");
    // Kubernetes makes these for services named ringfold and ringfold-master.
    started.env("RINGFOLD_PORT", "tcp://10.0.0.1:48148").env("RINGFOLD_SERVICE_HOST", "10.0.0.1");
    started.env("RINGFOLD_MASTER_PORT_48148_TCP_ADDR", "10.0.0.1").env("RINGFOLD_MASTER_SERVICE_PORT", "1");
    let mut master = Process::spawn(&mut started);
    let line = master.line_with("master listening on ");
    let addresses: Vec<_> = line.strip_prefix("master listening on ").unwrap().split(", ").collect();
    assert!(addresses[0].starts_with("127.0.0.1:") && addresses[1].starts_with("127.0.0.2:"), "{line}");
    let peer = || Communicator::builder(addresses[0]).build().unwrap();
    let first = peer();
    first.connect().unwrap();
    let error = peer().connect().unwrap_err().to_string();
    assert!(error.contains("the run is full"), "{error}");
    master.signal(Signal::TERM);
    let (status, stderr) = master.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("RINGFOLD_")).collect();
    assert_eq!(warnings.len(), 1, "{stderr}");
    assert!(warnings[0].contains("unknown variable RINGFOLD_HEARTBAET"), "{stderr}");
    assert!(warnings[0].contains("did you mean \"RINGFOLD_HEARTBEAT\"?"), "{stderr}");
}
