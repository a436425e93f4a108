//! Words on their way into a device's memory, where the device can't write them by itself.

use crate::api;
use crate::context::Context;
use crate::error::CudaError;
use crate::event::Event;
use crate::host_words::HostWords;
use crate::limits::{WORD_RING_WAIT_MAX, WORD_RING_WORDS};
use core::sync::atomic::Ordering;
use std::time::Instant;

/// Page-locked words that one stream copies from, each again after a while.
pub(crate) struct WordRing {
    context: Context,
    words: HostWords,
    next: usize,
    /// When the words of each half have been copied; none if none of them is on its way.
    copied: [Option<Event>; 2],
}

impl WordRing {
    pub(crate) fn open(context: Context) -> Result<Self, CudaError> {
        let words = HostWords::mapped(context, WORD_RING_WORDS * 8)?;
        Ok(Self { context, words, next: 0, copied: [None, None] })
    }

    /// Where a word lies that has this value until the stream has copied it, if that is queued next. `record` has the
    /// stream record an event.
    pub(crate) fn place(
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
