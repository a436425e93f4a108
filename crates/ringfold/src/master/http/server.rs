//! The loop of the HTTP server.

use super::access::Access;
use super::client::{Awaited, Client, Lateness, ResponseForm, Stage};
use super::feed::{Feed, Supplied};
use super::limits;
use super::metrics::HttpCounters;
use super::request::{Method, Request};
use super::response::{Response, send_stream_head};
use super::routes::{Plan, plan};
use crate::master::inquiry::{Inquiries, Question, Reply};
use crate::master::report::Printable;
use crate::master::snapshot::Seen;
use core::time::Duration;
use ringfold_fabric::clock::Clock;
use ringfold_fabric::listener::ListeningSockets;
use ringfold_fabric::memory::View;
use ringfold_fabric::poller::{Poller, Readiness, Token};
use ringfold_proto::time::Time;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The server.
pub(super) struct HttpServer {
    clock: Clock,
    poller: Arc<Poller>,
    sockets: ListeningSockets,
    access: Access,
    clients: HashMap<Token, Client>,
    /// Clients with requests that the poller will not report.
    unread: BTreeSet<Token>,
    feed: Feed,
    counters: HttpCounters,
    streams: Streams,
}

/// When the clients that follow the run get their next message.
#[derive(Default)]
struct Streams {
    /// What all of them have seen, and when it was sent.
    sent: Option<(Time, Arc<Supplied>)>,
    /// The next look at whether something has changed.
    next: Time,
    /// Since when a status is awaited for that.
    asked: Option<Time>,
    /// Members have changed, and nobody was told.
    is_urgent: bool,
    /// The last message or comment.
    spoken: Time,
    is_stall_told: bool,
}

impl HttpServer {
    pub(super) fn new(
        poller: Arc<Poller>,
        sockets: ListeningSockets,
        access: Access,
        inquiries: Arc<Inquiries>,
        master: Arc<Poller>,
    ) -> Self {
        Self {
            clock: Clock::start(),
            poller,
            sockets,
            access,
            clients: HashMap::new(),
            unread: BTreeSet::new(),
            feed: Feed::new(inquiries, master),
            counters: HttpCounters::default(),
            streams: Streams::default(),
        }
    }

    /// Serves until it is interrupted.
    pub(super) fn serve(mut self, interrupted: &AtomicBool) -> io::Result<()> {
        let mut ready = Readiness::default();
        while !interrupted.load(Ordering::Acquire) {
            let time_until_due = self.time_until_due(self.clock.now());
            self.poller.wait(&mut ready, time_until_due)?;
            let now = self.clock.now();
            let unread = std::mem::take(&mut self.unread);
            for token in ready.tokens().chain(unread) {
                match self.sockets.owns(token) {
                    true => self.accept(now, token),
                    false => self.advance(now, token),
                }
            }
            self.streams.is_urgent |= self.feed.advance(now);
            self.answer_waiting(now);
            self.tell_streams(now);
            self.expire(now);
            self.sockets.update_registration(now, self.clients.len() >= limits::CONNECTIONS_MAX);
        }
        Ok(())
    }

    fn time_until_due(&self, now: Time) -> Duration {
        if !self.unread.is_empty() {
            return Duration::ZERO;
        }
        let clients = self.clients.values().filter_map(Client::deadline);
        let own = [self.feed.poll_timeout(now), self.sockets.poll_timeout(), self.streams_due()];
        let due = clients.chain(own.into_iter().flatten()).min();
        due.map_or(limits::SLEEP_MAX, |at| at.since(now).min(limits::SLEEP_MAX))
    }

    fn accept(&mut self, now: Time, socket: Token) {
        for _ in 0..limits::REQUESTS_PER_TURN {
            let occupants = self.clients.values().map(Client::occupant);
            let Some(crowd) = self.sockets.find_room(now, occupants, limits::CONNECTIONS_MAX) else { return };
            let Some((stream, from)) = self.sockets.accept(now, socket) else { return };
            for token in crowd {
                self.clients.remove(&token);
            }
            match Client::new(now, stream, from, &self.poller) {
                Ok(client) => {
                    let token = client.connection.token();
                    self.clients.insert(token, client);
                    self.advance(now, token);
                }
                Err(error) => {
                    tracing::debug!(target: "ringfold::master", "no connection with {from}: {error}")
                }
            }
        }
    }

    /// Does what can be done with a client now.
    fn advance(&mut self, now: Time, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        let received = match client.stage {
            Stage::Reading => self.receive(now, token),
            Stage::Streaming(_) => client.discard_input(),
            Stage::Waiting(..) => client.connection.take_error().and_then(|error| error.map_or(Ok(()), Err)),
            Stage::Closing => Ok(()),
        };
        let Some(client) = self.clients.get_mut(&token) else { return };
        let is_over = match received {
            Ok(()) => client.settle(now).unwrap_or(true),
            // It has asked all it wants; the answer may still be on its way.
            Err(_) if client.queued_bytes() > 0 && !client.is_stream() => {
                client.stage = Stage::Closing;
                client.settle(now).unwrap_or(true)
            }
            Err(_) => true,
        };
        if is_over {
            self.clients.remove(&token);
        }
    }

    /// Answers what a client has asked, as much as one turn takes.
    fn receive(&mut self, now: Time, token: Token) -> io::Result<()> {
        for _ in 0..limits::REQUESTS_PER_TURN {
            let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
            client.connection.flush(&mut Vec::new())?;
            if !matches!(client.stage, Stage::Reading) || client.queued_bytes() > 0 {
                return Ok(());
            }
            match client.next_request()? {
                None => return Ok(()),
                Some(Ok(request)) => self.serve_request(now, token, &request),
                Some(Err(error)) => {
                    let form = ResponseForm { is_head: false, keeps_alive: false };
                    self.respond(token, Response::error(error.0, error.1), form);
                }
            }
        }
        self.unread.insert(token);
        Ok(())
    }

    fn serve_request(&mut self, now: Time, token: Token, request: &Request) {
        let form = ResponseForm { is_head: request.method == Method::Head, keeps_alive: request.keeps_alive };
        let Some(client) = self.clients.get_mut(&token) else { return };
        match plan(&self.access, request) {
            Plan::Answer(response) => self.respond(token, response, form),
            Plan::Status(to) => match self.feed.supply(now) {
                Some(supplied) => {
                    self.count_clients();
                    let response = to.respond(&supplied, &self.counters);
                    self.respond(token, response, form);
                }
                None => client.stage = Stage::Waiting(Awaited::Status(to, now), form),
            },
            Plan::Command(question) => {
                log_command(client.from, &question);
                client.stage = Stage::Waiting(Awaited::Command(self.feed.post(question)), form);
            }
            Plan::Stream => {
                send_stream_head(&mut client.connection);
                client.stage = if form.is_head { Stage::Closing } else { Stage::Streaming(None) };
                *self.counters.responses.entry(200).or_default() += 1;
            }
        }
    }

    fn respond(&mut self, token: Token, response: Response, form: ResponseForm) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        *self.counters.responses.entry(response.status).or_default() += 1;
        client.respond(response, form);
    }

    fn count_clients(&mut self) {
        self.counters.connections = self.clients.len();
        self.counters.streams = self.clients.values().filter(|client| client.is_stream()).count();
    }

    /// Answers clients whose answer needed something from the master.
    fn answer_waiting(&mut self, now: Time) {
        let is_waiting = |client: &Client| matches!(client.stage, Stage::Waiting(..));
        let waiting = self.clients.iter().filter(|(_, client)| is_waiting(client)).map(|(token, _)| *token);
        for token in waiting.collect::<Vec<_>>() {
            let Some(Client { stage: Stage::Waiting(awaited, form), .. }) = self.clients.get(&token) else {
                continue;
            };
            let form = *form;
            let response = match awaited {
                Awaited::Command(reply) => reply.take().map(|reply| match reply {
                    Reply::Done(text) => Response::object(200, "done", &text),
                    Reply::Refused(why) => Response::error(409, &why),
                    Reply::Status(_) | Reply::Snapshot(_) => {
                        Response::error(500, "another answer of the master")
                    }
                }),
                Awaited::Status(to, begun) => {
                    let (to, begun) = (*to, *begun);
                    match self.feed.supply(now).or_else(|| self.feed.arrived_since(begun)) {
                        Some(supplied) => {
                            self.count_clients();
                            Some(to.respond(&supplied, &self.counters))
                        }
                        None => self.feed.is_stalled(now).then(|| to.respond_stalled()),
                    }
                }
            };
            if let Some(response) = response {
                self.respond(token, response, form);
                self.continue_with(now, token);
            }
        }
    }

    /// Sends an answer, and looks for the next request.
    fn continue_with(&mut self, now: Time, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.settle(now).unwrap_or(true) {
            self.clients.remove(&token);
        } else {
            self.unread.insert(token);
        }
    }

    /// When streams have something to send.
    fn streams_due(&self) -> Option<Time> {
        let mut streams = self.clients.values().filter(|client| client.is_stream()).peekable();
        streams.peek()?;
        let next = self.streams.asked.is_none().then_some(self.streams.next);
        next.into_iter().chain([self.streams.spoken + limits::HEARTBEAT]).min()
    }

    /// Sends a message to clients that follow the run: at once if members have changed, or else not too often.
    fn tell_streams(&mut self, now: Time) {
        let is_new = |client: &Client| matches!(client.stage, Stage::Streaming(None));
        let has_new = self.clients.values().any(is_new);
        let streams = &mut self.streams;
        if !self.clients.values().any(Client::is_stream) {
            return *streams = Streams::default();
        }
        if has_new || streams.is_urgent || now >= streams.next {
            let begun = *streams.asked.get_or_insert(now);
            let newest = self.feed.supply(now);
            let is_newest = newest.is_some();
            // Without one, the answer wakes this thread.
            if let Some(supplied) = newest.or_else(|| self.feed.arrived_since(begun)) {
                let is_due = streams.is_urgent || now >= streams.next;
                streams.is_urgent &= !is_newest;
                streams.asked = streams.is_urgent.then_some(now);
                let is_news = streams.sent.as_ref().is_none_or(|(sent, last)| {
                    *sent + limits::STREAM_REFRESH <= now || supplied.snapshot.differs_from(&last.snapshot)
                });
                if is_due {
                    streams.next = now + limits::STREAM_EVERY;
                }
                if is_due && is_news {
                    (streams.sent, streams.is_stall_told) = (Some((now, supplied.clone())), false);
                }
                self.send_status(now, &supplied, is_due && is_news);
            }
        }
        if self.feed.is_stalled(now) && !std::mem::replace(&mut self.streams.is_stall_told, true) {
            self.send_to_streams(
                now,
                b"event: problem\ndata: {\"error\":\"the master does not answer\"}\n\n",
            );
        } else if now >= self.streams.spoken + limits::HEARTBEAT {
            self.send_to_streams(now, b":\n\n");
        }
    }

    /// Sends the status to streams, or only to new ones. Clients that have not read the last message get the next one.
    fn send_status(&mut self, now: Time, supplied: &Supplied, tells_all: bool) {
        let mut messages: HashMap<Option<Seen>, View> = HashMap::new();
        let mut told = Vec::new();
        for (token, client) in &mut self.clients {
            let Stage::Streaming(seen) = &mut client.stage else { continue };
            if client.connection.queued_bytes() > 0 || !(tells_all || seen.is_none()) {
                continue;
            }
            let message = messages.entry(*seen).or_insert_with(|| message(supplied, *seen));
            client.connection.send_put(&[], message.lease(0..message.len()), None);
            *seen = Some(supplied.snapshot.seen());
            told.push(*token);
        }
        self.settle_all(now, told);
    }

    fn send_to_streams(&mut self, now: Time, bytes: &[u8]) {
        let mut told = Vec::new();
        for (token, client) in &mut self.clients {
            if client.is_stream() && client.queued_bytes() == 0 {
                client.connection.send(bytes);
                told.push(*token);
            }
        }
        self.settle_all(now, told);
        self.streams.spoken = now;
    }

    fn settle_all(&mut self, now: Time, tokens: Vec<Token>) {
        for token in tokens {
            self.streams.spoken = now;
            if self.clients.get_mut(&token).is_some_and(|client| client.settle(now).unwrap_or(true)) {
                self.clients.remove(&token);
            }
        }
    }

    /// Ends what took too long.
    fn expire(&mut self, now: Time) {
        let is_late = |client: &Client| client.deadline().is_some_and(|deadline| deadline <= now);
        let late = self.clients.iter().filter(|(_, client)| is_late(client));
        let late: Vec<_> = late.map(|(token, client)| (*token, client.lateness())).collect();
        let form = ResponseForm { is_head: false, keeps_alive: false };
        for (token, lateness) in late {
            match lateness {
                Lateness::Useless => {
                    self.clients.remove(&token);
                    continue;
                }
                Lateness::SlowRequest => {
                    self.respond(
                        token,
                        Response::error(408, "the request was not complete within 10 s"),
                        form,
                    );
                }
                Lateness::NoAnswer => {
                    self.respond(token, Response::error(503, "the master does not answer"), form);
                }
            }
            self.continue_with(now, token);
        }
    }
}

/// A message: all of the status for a new reader, and what is new for one that has seen another.
fn message(supplied: &Supplied, seen: Option<Seen>) -> View {
    let update = seen.and_then(|seen| supplied.snapshot.since(seen)).and_then(Result::ok);
    let mut bytes = Vec::new();
    match update {
        Some(json) => {
            bytes.extend_from_slice(b"event: update\ndata: ");
            bytes.extend_from_slice(json.as_bytes());
        }
        None => {
            bytes.extend_from_slice(b"event: status\ndata: ");
            bytes.extend_from_slice(supplied.json().as_slice());
        }
    }
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

fn log_command(from: SocketAddr, question: &Question) {
    match question {
        Question::Evict { peer, reason } => {
            let (peer, reason) = (Printable(peer), Printable(reason));
            tracing::info!(target: "ringfold::master", "an operator at {from} evicts {peer}: {reason}");
        }
        Question::Drain { on } => {
            tracing::info!(target: "ringfold::master", "an operator at {from} sets draining to {on}");
        }
        Question::Status | Question::Snapshot => {}
    }
}
