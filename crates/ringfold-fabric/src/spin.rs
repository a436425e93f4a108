//! How long it is worth looking for what is about to come, before the thread is put to sleep.
//!
//! To be woken takes tens of microseconds, and what is awaited often comes sooner. But whoever looks keeps a core busy,
//! so it is done only while there is a core for each rank of the host, and only as long as it has paid lately.

use core::time::Duration;

/// No look is longer than this.
const LONGEST: Duration = Duration::from_micros(60);

/// A shorter one would save nothing, so it stays at this when it does not pay.
const SHORTEST: Duration = Duration::from_micros(2);

/// What is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// Nothing is about to come, or others need the core.
    Nothing,
    /// Frames, all of which come through memory.
    Memory,
    /// Frames that come through sockets too.
    Sockets,
    /// Word from the master.
    Word,
}

/// What has been learned of the times between asking and being answered.
#[derive(Debug)]
pub struct Spin {
    budgets: [Duration; 3],
}

impl Default for Spin {
    fn default() -> Self {
        Self { budgets: [LONGEST; 3] }
    }
}

impl Spin {
    /// How long to look.
    pub fn budget(&self, outlook: Outlook) -> Duration {
        place(outlook).map_or(Duration::ZERO, |at| self.budgets[at])
    }

    /// What was awaited came after so long, whether somebody slept meanwhile or not.
    pub fn learn(&mut self, outlook: Outlook, waited: Duration) {
        let Some(at) = place(outlook) else { return };
        let budget = &mut self.budgets[at];
        *budget = if waited <= *budget {
            LONGEST
        } else if waited <= LONGEST * 2 {
            // It was slept for in vain: most of the time was the waking.
            (*budget * 2).min(LONGEST)
        } else {
            (*budget / 2).max(SHORTEST)
        };
    }
}

fn place(outlook: Outlook) -> Option<usize> {
    match outlook {
        Outlook::Nothing => None,
        Outlook::Memory => Some(0),
        Outlook::Sockets => Some(1),
        Outlook::Word => Some(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_in_vain_is_given_up_and_taken_up_again_when_it_would_have_paid() {
        let mut spin = Spin::default();
        for _ in 0..20 {
            spin.learn(Outlook::Memory, Duration::from_millis(5));
        }
        assert_eq!(spin.budget(Outlook::Memory), SHORTEST);
        assert_eq!(spin.budget(Outlook::Sockets), LONGEST);
        for _ in 0..20 {
            spin.learn(Outlook::Memory, Duration::from_micros(40));
        }
        assert_eq!(spin.budget(Outlook::Memory), LONGEST);
        assert_eq!(spin.budget(Outlook::Nothing), Duration::ZERO);
    }
}
