//! Numbered messages that are kept until they are acknowledged (R7).
//!
//! A session outlives its connections: unacknowledged messages are sent again on the next one, and duplicates are
//! recognized by their numbers.

use crate::limits;
use crate::message::Numbered;
use serde::Serialize;
use std::collections::VecDeque;

/// The encoded size of a message, or of a part. One that cannot be encoded is not sent.
pub fn encoded_bytes(message: &impl Serialize) -> usize {
    postcard::experimental::serialized_size(message).unwrap_or(0)
}

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Session<Out> {
    /// The number of the last message sent.
    sent: u64,
    /// The number of the last message received.
    received: u64,
    /// The unacknowledged messages, each with its encoded size.
    outbox: VecDeque<(Numbered<Out>, usize)>,
    pub(crate) outbox_bytes: usize,
}

/// How to treat a received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// It is the next one, or unnumbered.
    New,
    /// It was received before.
    Duplicate,
    /// A message before it is missing, or it acknowledges a message that was never sent.
    Invalid,
}

impl<Out> Default for Session<Out> {
    fn default() -> Self {
        Self { sent: 0, received: 0, outbox: VecDeque::new(), outbox_bytes: 0 }
    }
}

impl<Out: Clone + Serialize> Session<Out> {
    /// Numbers a message and keeps it until it is acknowledged.
    pub fn enqueue(&mut self, message: Out) -> Numbered<Out> {
        let bytes = encoded_bytes(&message);
        self.enqueue_sized(message, bytes)
    }

    /// The same as [`Session::enqueue`], for a message whose encoded size is known because others get it, too.
    pub fn enqueue_sized(&mut self, message: Out, bytes: usize) -> Numbered<Out> {
        self.sent += 1;
        let numbered = Numbered { number: self.sent, acknowledged: self.received, message };
        self.outbox_bytes += bytes;
        self.outbox.push_back((numbered.clone(), bytes));
        numbered
    }

    /// Wraps a message that is not kept, and may be lost.
    pub fn unnumbered(&self, message: Out) -> Numbered<Out> {
        Numbered { number: 0, acknowledged: self.received, message }
    }

    /// Classifies a received message, and drops the messages that it acknowledges.
    pub fn receive<In>(&mut self, message: &Numbered<In>) -> Receipt {
        if message.acknowledged > self.sent {
            return Receipt::Invalid;
        }
        self.drop_acknowledged(message.acknowledged);
        match message.number {
            0 => Receipt::New,
            n if n == self.received + 1 => {
                self.received = n;
                Receipt::New
            }
            n if n <= self.received => Receipt::Duplicate,
            _ => Receipt::Invalid,
        }
    }

    /// The number of the last message that was sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of the last message that was received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The messages after the last one that the other end has received.
    pub fn unacknowledged_after(&mut self, received: u64) -> Vec<Numbered<Out>> {
        self.drop_acknowledged(received);
        // Repeated unchanged: `acknowledged` tells what was known when a message was sent first.
        self.outbox.iter().map(|(message, _)| message.clone()).collect()
    }

    /// Drops all sent messages and restarts their numbers, for a new incarnation of the other end.
    pub fn reset_sent(&mut self) {
        (self.sent, self.outbox_bytes) = (0, 0);
        self.outbox.clear();
    }

    /// Whether no message was acknowledged, so that all can be repeated.
    pub fn is_all_unacknowledged(&self) -> bool {
        self.outbox.len() as u64 == self.sent
    }

    /// Whether too many messages are unacknowledged.
    pub fn is_outbox_full(&self) -> bool {
        self.outbox.len() > limits::OUTBOX_MAX || self.outbox_bytes > limits::OUTBOX_BYTES_MAX
    }

    fn drop_acknowledged(&mut self, up_to: u64) {
        while let Some((_, bytes)) = self.outbox.pop_front_if(|(message, _)| message.number <= up_to) {
            self.outbox_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_messages_are_repeated_and_accepted_once() {
        let mut a = Session::<&str>::default();
        let mut b = Session::<&str>::default();
        let one = a.enqueue("one");
        a.enqueue("two");
        assert_eq!(b.receive(&one), Receipt::New);
        assert_eq!(b.receive(&one), Receipt::Duplicate);
        let again = a.unacknowledged_after(b.received());
        assert_eq!(again.len(), 1);
        assert_eq!(b.receive(&again[0]), Receipt::New);
        assert_eq!(a.receive(&b.unnumbered("thanks")), Receipt::New);
        assert!(a.unacknowledged_after(0).is_empty());
    }

    #[test]
    fn the_bytes_of_unacknowledged_messages_are_limited() {
        let mut a = Session::<String>::default();
        let text = "t".repeat(1 << 20);
        while !a.is_outbox_full() {
            a.enqueue(text.clone());
        }
        assert_eq!(a.sent() as usize, limits::OUTBOX_BYTES_MAX >> 20);
        assert_eq!(a.receive(&Numbered { number: 0, acknowledged: 1, message: () }), Receipt::New);
        assert!(!a.is_outbox_full());
    }

    #[test]
    fn gaps_and_unknown_acknowledgements_are_invalid() {
        let mut a = Session::<u8>::default();
        assert_eq!(a.receive(&Numbered { number: 2, acknowledged: 0, message: () }), Receipt::Invalid);
        assert_eq!(a.receive(&Numbered { number: 1, acknowledged: 1, message: () }), Receipt::Invalid);
    }
}
