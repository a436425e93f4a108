//! The data path between two members: TCP streams, or shared memory.

mod streams;

pub use crate::arrival::Arrival;
pub use streams::StreamLink;

use crate::connection::Connection;
use crate::memory::Lease;
use crate::poller::Token;
use crate::shared_link::SharedLink;
use crate::slots::SlotPool;
use core::time::Duration;
use ringfold_plan::executor::FrameDecision;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::event::LinkTransport;
use ringfold_proto::link_message::LinkMessage;
use std::io;

/// A link. Everything arrives in the order in which it was sent.
#[derive(Debug)]
pub enum Link {
    /// Over TCP.
    Streams(StreamLink),
    /// Through shared memory.
    Shared(Box<SharedLink>),
}

/// Calls the method of either kind of link.
macro_rules! dispatch {
    ($link:expr, $name:ident => $call:expr) => {
        match $link {
            Link::Streams($name) => $call,
            Link::Shared($name) => $call,
        }
    };
}

impl Link {
    /// A link on established connections, in the order that both ends agreed on.
    pub fn new(sockets: Vec<Connection>) -> Self {
        Self::Streams(StreamLink::new(sockets))
    }

    /// A link over QUIC, and the TCP connection beside it.
    pub fn guarded(guard: Connection, data: Connection) -> Self {
        Self::Streams(StreamLink::guarded(guard, data))
    }

    /// Whether it uses shared memory.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// How data gets to the other end. A link through a relay does not know of it.
    pub fn transport(&self) -> LinkTransport {
        match self {
            Self::Shared(_) => LinkTransport::SharedMemory,
            Self::Streams(link) if link.is_quic() => LinkTransport::Quic,
            Self::Streams(_) => LinkTransport::Tcp,
        }
    }

    /// Reads what has arrived on a socket, without asking the poller. Returns whether there is something to take; none if
    /// only the poller can tell.
    pub fn look(&mut self) -> Option<bool> {
        match self {
            Self::Streams(link) => link.look(),
            Self::Shared(_) => None,
        }
    }

    /// Whether both ends are on this host, as far as their addresses show.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Streams(link) => link.is_local(),
            Self::Shared(_) => true,
        }
    }

    /// The round-trip time, and the bytes per second that the path carries, as far as they are known. Nothing for links
    /// that stay on this host.
    pub fn measure(&self) -> (Option<Duration>, Option<u64>) {
        match self {
            Self::Streams(link) if !link.is_local() => link.measure(),
            _ => (None, None),
        }
    }

    /// The tokens of its sockets.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let (streams, shared) = match self {
            Self::Streams(link) => (Some(link.tokens()), None),
            Self::Shared(link) => (None, Some(link.token())),
        };
        streams.into_iter().flatten().chain(shared)
    }

    /// Queues a frame, or sends it at once. [`Link::flush`] returns its ticket.
    pub fn put(&mut self, header: &DataHeader, payload: Lease, ticket: Ticket) {
        dispatch!(self, link => link.put(header, payload, ticket));
    }

    /// Queues a message.
    pub fn send_message(&mut self, message: &LinkMessage) {
        dispatch!(self, link => link.send_message(message));
    }

    /// Queues a message ahead of all frames that have not begun to leave.
    pub fn send_message_first(&mut self, message: &LinkMessage) {
        dispatch!(self, link => link.send_message_first(message));
    }

    /// Stops reading the memory of a put. Returns whether it was still queued.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        dispatch!(self, link => link.cancel(ticket))
    }

    /// Has the next flush send messages that can wait, too.
    pub fn flush_deferred(&mut self) {
        dispatch!(self, link => link.flush_deferred());
    }

    /// Sends what can be sent now, but not messages that can wait if there is nothing else.
    pub fn flush(&mut self, flushed: &mut Vec<Ticket>) -> io::Result<()> {
        dispatch!(self, link => link.flush(flushed))
    }

    /// Adds the puts that will never be sent to `tickets`, when the link is closed.
    pub fn drain_unsent(&mut self, tickets: &mut Vec<Ticket>) {
        dispatch!(self, link => tickets.extend(link.unsent()));
    }

    /// Sends what is left and ends the link. Returns true when that is done, or the link is broken.
    pub fn poll_closed(&mut self) -> bool {
        dispatch!(self, link => link.poll_closed())
    }

    /// One of its sockets is ready.
    pub fn handle_ready(&mut self) {
        dispatch!(self, link => link.handle_ready());
    }

    /// The next arrival in the order of the link, if it is complete. `judge` decides by the header of a frame, before its
    /// payload is read. Payloads are read directly into their slot, or stay in shared memory.
    pub fn next(
        &mut self,
        pool: &mut SlotPool,
        judge: impl Fn(&DataHeader) -> FrameDecision,
    ) -> io::Result<Option<Arrival>> {
        dispatch!(self, link => link.next(pool, judge))
    }
}
