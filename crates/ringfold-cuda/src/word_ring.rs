//! Source words for streams that cannot write immediate values (`cuStreamWriteValue64`).

use crate::api;
use crate::context::Context;
use crate::error::CudaError;
use crate::event::Event;
use crate::host_words::HostWords;
use crate::limits::{WORD_RING_WAIT_MAX, WORD_RING_WORDS};
use core::sync::atomic::Ordering;
use std::time::Instant;

/// Page-locked words that one stream copies from, reused in turn.
pub(crate) struct WordRing {
    context: Context,
    words: HostWords,
    next: usize,
    /// Completes when the words of each half are copied; none if none of them is in flight.
    copied: [Option<Event>; 2],
}

impl WordRing {
    pub(crate) fn open(context: Context) -> Result<Self, CudaError> {
        let words = HostWords::mapped(context, WORD_RING_WORDS * 8)?;
        Ok(Self { context, words, next: 0, copied: [None, None] })
    }

    /// Stores a value in the next word, and returns the word's device address.
    ///
    /// The caller must queue the copy next. `record` makes the stream record an event.
    pub(crate) fn store(
        &mut self,
        value: u64,
        record: impl Fn(&Event) -> Result<(), CudaError>,
    ) -> Result<u64, CudaError> {
        let half = WORD_RING_WORDS / 2;
        if self.next.is_multiple_of(half) {
            let entered = self.next / half % 2;
            let event = match self.copied[1 - entered].take() {
                Some(event) => event,
                None => Event::open(self.context, api::EVENT_DISABLE_TIMING)?,
            };
            record(&event)?;
            self.copied[1 - entered] = Some(event);
            if let Some(event) = &self.copied[entered] {
                event.wait_until(Instant::now() + WORD_RING_WAIT_MAX)?;
            }
        }
        let index = self.next % WORD_RING_WORDS;
        self.next = (self.next + 1) % WORD_RING_WORDS;
        self.words.word(index).store(value, Ordering::Release);
        Ok(self.words.device_address() + 8 * index as u64)
    }
}
