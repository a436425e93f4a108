//! What connects two members: streams, or memory that both have mapped.

mod streams;

pub use crate::arrival::Arrival;
pub use streams::StreamLink;

use crate::connection::Connection;
use crate::memory::Lease;
use crate::poller::Token;
use crate::shared_link::SharedLink;
use crate::slots::SlotPool;
use ringfold_plan::executor::Verdict;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::link_message::LinkMessage;
use std::io;

/// A link. Everything arrives in the order in which it was handed over.
#[derive(Debug)]
pub enum Link {
    /// Through the network.
    Streams(StreamLink),
    /// Through memory.
    Shared(Box<SharedLink>),
}

impl Link {
    /// A link on established connections, in the order that both ends agreed on.
    pub fn new(sockets: Vec<Connection>) -> Self {
        Self::Streams(StreamLink::new(sockets))
    }

    /// Whether it goes through memory.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Whether both ends are on this host, as far as their addresses show.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Streams(link) => link.is_local(),
            Self::Shared(_) => true,
        }
    }

    /// The names of its sockets in the poller.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let (streams, shared) = match self {
            Self::Streams(link) => (Some(link.tokens()), None),
            Self::Shared(link) => (None, Some(link.token())),
        };
        streams.into_iter().flatten().chain(shared)
    }

    /// Queues a frame, or hands it over at once; its ticket comes back from [`Link::flush`].
    pub fn put(&mut self, header: &DataHeader, payload: Lease, ticket: Ticket) {
        match self {
            Self::Streams(link) => link.put(header, payload, ticket),
            Self::Shared(link) => link.put(header, payload, ticket),
        }
    }

    /// Queues a message.
    pub fn say(&mut self, message: &LinkMessage) {
        match self {
            Self::Streams(link) => link.say(message),
            Self::Shared(link) => link.say(message),
        }
    }

    /// Sends a message ahead of all frames that have not begun to leave.
    pub fn say_urgently(&mut self, message: &LinkMessage) {
        match self {
            Self::Streams(link) => link.say_urgently(message),
            Self::Shared(link) => link.say_urgently(message),
        }
    }

    /// The memory of a put is no longer to be read. Says whether it was still queued.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        match self {
            Self::Streams(link) => link.cancel(ticket),
            Self::Shared(link) => link.cancel(ticket),
        }
    }

    /// What could wait leaves with the next flush, too.
    pub fn hurry(&mut self) {
        match self {
            Self::Streams(link) => link.hurry(),
            Self::Shared(link) => link.hurry(),
        }
    }

    /// Sends what can be sent now, but for messages that can wait if there is nothing else.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        match self {
            Self::Streams(link) => link.flush(flushed),
            Self::Shared(link) => link.flush(flushed),
        }
    }

    /// Puts that will never be sent, when the link is given up, are added to `tickets`.
    pub fn drain_unsent(&mut self, tickets: &mut Vec<Ticket>) {
        match self {
            Self::Streams(link) => tickets.extend(link.unsent()),
            Self::Shared(link) => tickets.extend(link.unsent()),
        }
    }

    /// Sends what is left and ends the link. Returns true when that is done, or the link is broken.
    pub fn poll_closed(&mut self) -> bool {
        match self {
            Self::Streams(link) => link.poll_closed(),
            Self::Shared(link) => link.poll_closed(),
        }
    }

    /// The poller tells that something can be done with one of its sockets.
    pub fn handle_ready(&mut self) {
        if let Self::Shared(link) = self {
            link.handle_ready();
        }
    }

    /// The next arrival in the order of the link, if it is complete. Frames are judged by their headers, before
    /// their payload is read; payloads are read straight to where they stay, or stay where they lie.
    pub fn next(
        &mut self,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> Verdict,
    ) -> io::Result<Option<Arrival>> {
        match self {
            Self::Streams(link) => link.next(pool, judge),
            Self::Shared(link) => link.next(pool, judge),
        }
    }
}
