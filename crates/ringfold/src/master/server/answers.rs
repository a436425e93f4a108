//! Answers to observers, operators, and other threads of the process.

use super::Server;
use crate::journal::format_time;
use crate::master::inquiry::{Question, Reply};
use crate::master::status::{MasterInfo, Status};
use ringfold_fabric::poller::Token;
use ringfold_proto::limits::STATUS_BYTES_MAX;
use ringfold_proto::observe::{ObserverAnswer, ObserverRequest};
use ringfold_proto::time::Time;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

/// Why a master that is not active does nothing for operators.
const STANDS_BY: &str = "this master is not active: ask the one that is";

impl Server {
    /// Answers what an observer has asked.
    pub(super) fn serve_observer(&mut self, now: Time, token: Token) {
        let mut observers = std::mem::take(&mut self.observers);
        observers.handle_ready(now, token, |request| {
            let question = match request {
                ObserverRequest::Status => Question::Status,
                ObserverRequest::Evict { peer, reason } => Question::Evict { peer, reason },
                ObserverRequest::Drain { on } => Question::Drain { on },
            };
            match self.answer(now, question) {
                Reply::Done(text) => ObserverAnswer::Done(text),
                Reply::Refused(text) => ObserverAnswer::Refused(text),
                Reply::Snapshot(_) => ObserverAnswer::Refused("another answer".into()),
                Reply::Status(status) => match serde_json::to_string(&status) {
                    Ok(json) if json.len() <= STATUS_BYTES_MAX => ObserverAnswer::Status(json),
                    Ok(_) => ObserverAnswer::Refused("the status is too long".into()),
                    Err(error) => ObserverAnswer::Refused(format!("the status cannot be written: {error}")),
                },
            }
        });
        self.observers = observers;
    }

    /// Answers a question, or carries out a command.
    pub(super) fn answer(&mut self, now: Time, question: Question) -> Reply {
        match question {
            Question::Status => Reply::Status(Box::new(self.status(now))),
            Question::Snapshot => {
                let status = self.status(now);
                Reply::Snapshot(Box::new(self.history.snapshot(status)))
            }
            Question::Evict { peer, reason } => {
                let Some(machine) = self.machine.machine() else { return Reply::Refused(STANDS_BY.into()) };
                match machine.find_peer(&peer) {
                    Ok(found) => {
                        self.machine.evict(now, found.peer, &reason);
                        Reply::Done(format!("{found} ({}) is evicted", found.peer.short()))
                    }
                    Err(why) => Reply::Refused(why),
                }
            }
            Question::Drain { .. } if self.machine.machine().is_none() => Reply::Refused(STANDS_BY.into()),
            Question::Drain { on } => {
                self.machine.drain(now, on);
                Reply::Done(if on { "new peers are refused" } else { "new peers may join" }.into())
            }
        }
    }

    fn status(&mut self, now: Time) -> Status {
        let leader = self.machine.leader(now);
        let machine = self.machine.machine();
        let several = self.list.addresses.len() > 1;
        let address = |addresses: &Vec<SocketAddr>| addresses.first().map(SocketAddr::to_string);
        let position = |index: u16| index + 1;
        let at = Instant::now();
        let mut run = self.machine.status(now);
        if let [only] = &mut run.masters[..] {
            only.address = self.listener.addresses().next().map(|address| address.to_string());
        }
        Status {
            run,
            master: MasterInfo {
                addresses: self.listener.addresses().map(|address| address.to_string()).collect(),
                version: env!("CARGO_PKG_VERSION").into(),
                active: machine.is_some(),
                position: position(self.list.me),
                masters: self.list.addresses.iter().filter(|_| several).filter_map(address).collect(),
                active_position: leader.map(position),
                uptime_s: self.started.elapsed().as_secs_f64(),
                pid: std::process::id(),
            },
            throughput: self.history.throughput(at),
            history: self.history.seconds(at),
            events: self.history.events(),
            time: format_time(SystemTime::now()),
        }
    }
}
