//! The numbering that makes requests idempotent and keeps outcomes until they are acknowledged (R7).
//!
//! A session outlives its connections: whatever the other side has not acknowledged is sent again on
//! the next one, and what it has had already is recognised by its number.

use crate::limits;
use crate::message::Numbered;
use serde::Serialize;
use std::collections::VecDeque;

/// One side of a session: what it said and was not acknowledged, and how much it has heard.
#[derive(Clone, Debug)]
pub struct Session<Out> {
    said: u64,
    heard: u64,
    /// Each with the bytes that it takes up, encoded.
    outbox: VecDeque<(Numbered<Out>, usize)>,
    outbox_bytes: usize,
}

/// What to make of a message that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// It is the next one, or stands outside of the numbering.
    Fresh,
    /// It was here before.
    Repeat,
    /// One before it is missing, or it acknowledges what was never said: the sender is at fault.
    Impossible,
}

impl<Out> Default for Session<Out> {
    fn default() -> Self {
        Self { said: 0, heard: 0, outbox: VecDeque::new(), outbox_bytes: 0 }
    }
}

impl<Out: Clone + Serialize> Session<Out> {
    /// Numbers a message and keeps it until it is acknowledged.
    pub fn say(&mut self, message: Out) -> Numbered<Out> {
        self.said += 1;
        let numbered = Numbered { number: self.said, acknowledged: self.heard, message };
        // What can't be encoded is not sent either.
        let bytes = postcard::experimental::serialized_size(&numbered.message).unwrap_or(0);
        self.outbox_bytes += bytes;
        self.outbox.push_back((numbered.clone(), bytes));
        numbered
    }

    /// A message that need not arrive.
    pub fn say_aside(&self, message: Out) -> Numbered<Out> {
        Numbered { number: 0, acknowledged: self.heard, message }
    }

    /// Judges a message that arrived, and forgets what it acknowledges.
    pub fn hear<In>(&mut self, arrived: &Numbered<In>) -> Receipt {
        if arrived.acknowledged > self.said {
            return Receipt::Impossible;
        }
        self.acknowledged(arrived.acknowledged);
        match arrived.number {
            0 => Receipt::Fresh,
            n if n == self.heard + 1 => {
                self.heard = n;
                Receipt::Fresh
            }
            n if n <= self.heard => Receipt::Repeat,
            _ => Receipt::Impossible,
        }
    }

    /// The number of the last message that was said.
    pub fn said(&self) -> u64 {
        self.said
    }

    /// How many of the other side's messages have arrived.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Everything that the other side has not had, when it says how much it has had.
    pub fn missed_after(&mut self, received: u64) -> Vec<Numbered<Out>> {
        self.acknowledged(received);
        // Repeated as it was said: what it acknowledges tells what was known when it was said.
        self.outbox.iter().map(|(message, _)| message.clone()).collect()
    }

    /// Forgets all that was said: the other side begins anew, and will be told again what still counts.
    pub fn unsay(&mut self) {
        (self.said, self.outbox_bytes) = (0, 0);
        self.outbox.clear();
    }

    /// Whether the other side has acknowledged nothing of what was said, so that all of it can be repeated.
    pub fn is_all_unacknowledged(&self) -> bool {
        self.outbox.len() as u64 == self.said
    }

    /// Whether the other side has fallen hopelessly behind.
    pub fn is_overfull(&self) -> bool {
        self.outbox.len() > limits::OUTBOX_MAX || self.outbox_bytes > limits::OUTBOX_BYTES_MAX
    }

    fn acknowledged(&mut self, up_to: u64) {
        while let Some((_, bytes)) = self.outbox.pop_front_if(|(message, _)| message.number <= up_to) {
            self.outbox_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_said_again_and_taken_once() {
        let mut a = Session::<&str>::default();
        let mut b = Session::<&str>::default();
        let one = a.say("one");
        a.say("two");
        assert_eq!(b.hear(&one), Receipt::Fresh);
        assert_eq!(b.hear(&one), Receipt::Repeat);
        let again = a.missed_after(b.heard());
        assert_eq!(again.len(), 1);
        assert_eq!(b.hear(&again[0]), Receipt::Fresh);
        assert_eq!(a.hear(&b.say_aside("thanks")), Receipt::Fresh);
        assert!(a.missed_after(0).is_empty());
    }

    #[test]
    fn what_is_not_acknowledged_is_bounded_by_its_bytes_too() {
        let mut a = Session::<String>::default();
        let text = "t".repeat(1 << 20);
        while !a.is_overfull() {
            a.say(text.clone());
        }
        assert_eq!(a.said() as usize, limits::OUTBOX_BYTES_MAX >> 20);
        assert_eq!(a.hear(&Numbered { number: 0, acknowledged: 1, message: () }), Receipt::Fresh);
        assert!(!a.is_overfull());
    }

    #[test]
    fn gaps_and_impossible_acknowledgements_are_the_senders_fault() {
        let mut a = Session::<u8>::default();
        assert_eq!(a.hear(&Numbered { number: 2, acknowledged: 0, message: () }), Receipt::Impossible);
        assert_eq!(a.hear(&Numbered { number: 1, acknowledged: 1, message: () }), Receipt::Impossible);
    }
}
