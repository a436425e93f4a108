//! Checks of the Python interpreter, of torch and of the wheel.

use crate::invocation::Invocation;
use ringfold::doctor::{Finding, describe_torch};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the interpreter may take.
const PYTHON_MAX: Duration = Duration::from_secs(20);
/// How often its end is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of its answer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// The oldest Python that the wheel supports.
const PYTHON_MIN: (u32, u32) = (3, 11);

/// Nothing is imported: that takes seconds, and may hang.
const SCRIPT: &str = r#"
import sys
sys.path[:] = [path for path in sys.path if path]
import importlib.util, json, os, platform
from importlib import metadata
answer = {"python": platform.python_version(), "executable": sys.executable, "torch": None, "cuda": None, "wheel": None}
try:
    answer["wheel"] = metadata.version("ringfold")
except metadata.PackageNotFoundError:
    pass
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    names = {}
    with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
        exec(file.read(), names)
    answer["torch"], answer["cuda"] = str(names.get("__version__")), names.get("cuda")
print(json.dumps(answer))
"#;

#[derive(Deserialize, Debug)]
struct Answer {
    python: String,
    executable: String,
    torch: Option<String>,
    cuda: Option<String>,
    wheel: Option<String>,
}

/// Asks the interpreter that runs this command, or else `python3`.
pub(super) fn examine(invocation: &Invocation) -> Vec<Finding> {
    let program = match invocation {
        Invocation::Program(program, _) => program.clone(),
        Invocation::ThisProgram => OsString::from("python3"),
    };
    match ask(&program) {
        Ok(Some(text)) => match serde_json::from_str(&text) {
            Ok(answer) => judge(&answer),
            Err(error) => vec![broken(&format!("its answer is invalid: {error}"))],
        },
        Ok(None) => vec![Finding::ok("python.interpreter", "there is no python3 here")],
        Err(why) => vec![broken(&why)],
    }
}

fn broken(why: &str) -> Finding {
    let text = format!("python3 could not be asked for the versions of torch and the wheel: {why}");
    Finding::warn(
        "python.interpreter",
        text,
        "repair the Python installation, or ignore this if it is not used",
    )
}

/// What the interpreter prints; none if there is none.
fn ask(program: &OsString) -> Result<Option<String>, String> {
    let command = Command::new(program)
        .args(["-c", SCRIPT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match command {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let end = Instant::now() + PYTHON_MAX;
    // The answer is shorter than a pipe holds, so it does not block.
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() >= end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", PYTHON_MAX.as_secs()));
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    let mut text = String::new();
    let output = child.stdout.take().ok_or("it has no output")?;
    output.take(ANSWER_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(Some(text))
}

fn judge(answer: &Answer) -> Vec<Finding> {
    let mut numbers = answer.python.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let text = format!("{} is Python {}", answer.executable, answer.python);
    let interpreter = match version < PYTHON_MIN {
        true => Finding::warn(
            "python.interpreter",
            format!("{text}: too old for the wheel"),
            format!("use Python {}.{} or newer", PYTHON_MIN.0, PYTHON_MIN.1),
        ),
        false => Finding::ok("python.interpreter", text),
    };
    let torch = match &answer.torch {
        None => "torch is not installed, and only needed for its APIs".to_owned(),
        version => describe_torch(version.as_deref(), answer.cuda.as_deref()),
    };
    let own = env!("CARGO_PKG_VERSION");
    let wheel = match &answer.wheel {
        None => Finding::ok("python.wheel", "the wheel of Ringfold is not installed in this Python"),
        Some(version) if version == own => {
            Finding::ok("python.wheel", format!("the wheel is of release {version}"))
        }
        Some(version) => Finding::warn(
            "python.wheel",
            format!("the wheel is of release {version}, this command of {own}"),
            "install the same release: `pip install --upgrade ringfold`",
        ),
    };
    vec![interpreter, Finding::ok("python.torch", torch), wheel]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfold::doctor::Judgement::{Ok as Good, Warn};

    #[test]
    fn versions_are_judged() {
        let answer = |python: &str, wheel: Option<&str>| Answer {
            python: python.into(),
            executable: "/usr/bin/python3".into(),
            torch: Some("2.11.0".into()),
            cuda: Some("12.8".into()),
            wheel: wheel.map(str::to_owned),
        };
        let judged = |answer: &Answer| judge(answer).iter().map(|f| f.judgement).collect::<Vec<_>>();
        assert_eq!(judged(&answer("3.11.2", None)), [Good; 3]);
        assert_eq!(judged(&answer("3.9.1", Some("9.9.9"))), [Warn, Good, Warn]);
        assert_eq!(judged(&answer("3.12.0", Some(env!("CARGO_PKG_VERSION")))), [Good; 3]);
        assert!(judge(&answer("3.12.0", None))[1].text.contains("torch 2.11.0, for CUDA 12.8"));
    }

    #[test]
    fn a_missing_interpreter_is_ok_and_a_broken_one_is_named() {
        assert_eq!(ask(&"/no/such/python".into()), Ok(None));
        assert!(ask(&"false".into()).unwrap_err().contains("exit status"));
        let answers = ask(&"python3".into());
        assert!(
            matches!(&answers, Ok(None)) || answers.is_ok_and(|text| text.unwrap().contains("executable"))
        );
    }
}
