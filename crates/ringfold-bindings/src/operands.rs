//! What a user asks of an all-reduce, looked at before anything is done.

use crate::result::Failure;
use crate::span::Span;
use ringfold::{AllReduce, DType};

/// An all-reduce whose arguments are sound.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Where the input lies.
    pub send: Span,
    /// Where the result is wanted.
    pub recv: Span,
    /// The tag, which the options have too.
    pub tag: u64,
    /// What the elements are.
    pub dtype: DType,
    /// What to do.
    pub options: AllReduce,
}

impl Operands {
    /// Buffers are the same or apart.
    pub fn checked(
        send: Span,
        recv: Span,
        dtype: DType,
        tag: u64,
        options: AllReduce,
    ) -> Result<Self, Failure> {
        if send != recv && send.overlaps(recv) {
            return Err(Failure::argument("the send and the receive buffer overlap, and are not the same"));
        }
        Ok(Self { send, recv, tag, dtype, options: options.tag(tag) })
    }

    /// Whether the result replaces the input.
    pub fn is_in_place(&self) -> bool {
        self.send == self.recv
    }
}

/// Whether one of several operations writes what another one uses.
pub fn require_apart(operands: &[Operands]) -> Result<(), Failure> {
    // By start, so that only what was begun and has not ended needs to be looked at.
    let spans = |(i, o): (usize, &Operands)| [(o.recv, true, i), (o.send, false, i)];
    let mut spans: Vec<_> = operands.iter().enumerate().flat_map(spans).filter(|s| s.0.bytes > 0).collect();
    spans.sort_unstable();
    let mut open: Vec<(Span, bool, usize)> = Vec::new();
    for next in spans {
        open.retain(|o| o.0.overlaps(next.0));
        if let Some(other) = open.iter().find(|o| o.2 != next.2 && (o.1 || next.1)) {
            return Err(Failure::argument(format!(
                "the buffers of tag {} and tag {} overlap",
                operands[other.2].tag, operands[next.2].tag
            )));
        }
        open.push(next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(send: usize, recv: usize) -> Result<Operands, Failure> {
        let at = |start| Span { start, bytes: 16 };
        Operands::checked(at(send), at(recv), DType::F32, 0, AllReduce::sum())
    }

    fn at(send: usize, recv: usize) -> Operands {
        checked(send, recv).unwrap()
    }

    #[test]
    fn buffers_are_the_same_or_apart() {
        assert!(checked(4096, 4096).is_ok() && checked(4096, 4112).is_ok());
        assert!(checked(4096, 4111).is_err() && checked(4111, 4096).is_err());
    }

    #[test]
    fn several_may_read_the_same_memory_and_none_may_write_what_another_uses() {
        assert!(require_apart(&[at(4096, 8192), at(4096, 9000)]).is_ok());
        assert!(require_apart(&[at(4096, 4096), at(8192, 8192)]).is_ok());
        assert!(require_apart(&[at(4096, 8192), at(5000, 8200)]).is_err());
        assert!(require_apart(&[at(4096, 8192), at(8192, 9000)]).is_err());
    }
}
