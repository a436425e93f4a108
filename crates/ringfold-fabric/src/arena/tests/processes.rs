//! Ranks that are processes of their own, one of which is killed.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const TICKET: &str = "RINGFOLD_TEST_ARENA";
const NAME: &str = "arena::tests::processes::a_wait_for_a_killed_process_ends_by_its_deadline_or_an_abort";

/// A rank that does what it is told, line by line.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(arena: &Arena, rank: u16) -> Self {
        let ticket = arena.ticket().encode().map(|byte| byte.to_string()).join(",");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(TICKET, format!("{rank};{ticket}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// What it says next; the test harness's own words do not count.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some(answer) = line.trim().split("answer: ").nth(1) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end: `announce ROUND`, or `wait ROUND MILLISECONDS` for everyone's announcement.
fn obey(order: &str) {
    let (rank, ticket) = order.split_once(';').unwrap();
    let bytes: Vec<u8> = ticket.split(',').map(|byte| byte.parse().unwrap()).collect();
    let ticket = Ticket::decode(&bytes.try_into().unwrap()).unwrap();
    let arena = Arc::new(Arena::open(&ticket, SMALL).unwrap());
    let mut member = arena.join(Rank(rank.parse().unwrap())).unwrap();
    println!("answer: ready");
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let round: u64 = words[1].parse().unwrap();
        match words[0] {
            "announce" => {
                assert!(member.may_fill(round));
                member.announce(round, 0);
                println!("answer: announced");
            }
            _ => {
                let timeout = Duration::from_millis(words[2].parse().unwrap());
                let need = Need::Announced { round, by: Ranks::all(3) };
                println!("answer: waits");
                println!(
                    "answer: {:?} {:?}",
                    member.wait(need, || Instant::now() + timeout),
                    arena.aborted()
                );
            }
        }
    }
}

#[test]
fn a_wait_for_a_killed_process_ends_by_its_deadline_or_an_abort() {
    if let Ok(order) = std::env::var(TICKET) {
        return obey(&order);
    }
    let arena = Arena::create(SMALL).unwrap();
    let mut ranks = [0, 1, 2].map(|rank| Process::start(&arena, rank));
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "ready");
        rank.tell("announce 0");
        assert_eq!(rank.hear(), "announced");
    }
    for rank in &mut ranks {
        rank.tell("wait 0 20000");
        assert_eq!((rank.hear().as_str(), rank.hear().as_str()), ("waits", "Ok(()) None"));
    }
    ranks[1].child.kill().unwrap();
    ranks[1].child.wait().unwrap();
    for rank in [0, 2] {
        ranks[rank].tell("announce 1");
        assert_eq!(ranks[rank].hear(), "announced");
    }
    ranks[0].tell("wait 1 200");
    ranks[2].tell("wait 1 60000");
    assert_eq!((ranks[0].hear().as_str(), ranks[0].hear().as_str()), ("waits", "Err(Late({1})) None"));
    assert_eq!(ranks[2].hear(), "waits");
    await_asleep(&arena, Ranks::one(Rank(2)));
    let began = Instant::now();
    arena.abort(Rank(0), "rank 1 is gone");
    let answer = ranks[2].hear();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(answer, "Err(Aborted) Some(Abort { by: Rank(0), why: \"rank 1 is gone\" })");
}
