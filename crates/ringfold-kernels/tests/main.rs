//! All integration tests of this crate in one binary. A new file needs a line here.

mod arithmetic;
mod oracle;
mod quantize;
mod reduce;
