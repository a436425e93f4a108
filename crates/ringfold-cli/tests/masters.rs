//! What `ringfold status` says of several masters.

use crate::process::{Process, RINGFOLD, eventually, output};
use ringfold::Communicator;
use ringfold_lab::socket::free_port;
use rustix::process::Signal;
use serde_json::Value;

fn status(masters: &str) -> (Value, Option<i32>) {
    let shown = output(RINGFOLD, &["status", masters, "--json"]);
    (serde_json::from_slice(&shown.stdout).unwrap(), shown.status.code())
}

/// The roles of the masters, once the verdict begins so.
fn roles(masters: &str, verdict: &str) -> Vec<String> {
    eventually(verdict, || {
        let (json, code) = status(masters);
        let is_said = json["verdict"].as_str()?.starts_with(verdict);
        assert_eq!(code == Some(1), json["health"] == "degraded", "{json}");
        let role = |master: &Value| master["role"].as_str().map(str::to_owned);
        is_said.then(|| json["masters"].as_array()?.iter().map(role).collect()).flatten()
    })
}

#[test]
fn lost_masters_are_named_and_degrade_the_run() {
    let ports = [free_port(), free_port(), free_port()];
    let list = ports.map(|port| format!("127.0.0.1:{port}"));
    let all = list.join(",");
    let start = |at: &String| Process::start(RINGFOLD, &["master", "--listen", at, "--masters", &all]);
    let masters = [start(&list[0]), start(&list[1]), start(&list[2])];
    let listens = |at: &String| std::net::TcpStream::connect(at).ok();
    list.iter().for_each(|at| drop(eventually("the master", || listens(at))));
    let peer = Communicator::builder(&all).name("ann").build().unwrap();
    peer.connect().unwrap();
    let found = roles(&all, "healthy");
    assert_eq!(found.iter().filter(|role| *role == "active").count(), 1, "{found:?}");
    let active = found.iter().position(|role| role == "active").unwrap();
    let [first, last] = [(active + 1) % 3, (active + 2) % 3];

    // One that stands by leads the command to the active one.
    let (found, _) = status(&list[first]);
    assert_eq!(found["master"]["position"], active + 1, "{found}");

    masters[first].signal(Signal::KILL);
    assert_eq!(roles(&all, "degraded: 2 of 3 masters: ")[first], "lost");
    // A frozen master delays the command little, wherever it is in the list.
    masters[last].signal(Signal::STOP);
    let found =
        roles(&format!("{},{all}", list[last]), "degraded: 1 of 3 masters: one more loss stops the run");
    assert_eq!((&*found[active], &*found[first], &*found[last]), ("active", "lost", "lost"));
    let text = output(RINGFOLD, &["status", &list[active]]).stdout;
    let text = String::from_utf8(text).unwrap();
    let row = text.lines().find(|line| line.contains(&list[last]) && line.contains("lost"));
    assert!(row.is_some(), "{text}");
    drop(peer);
}
