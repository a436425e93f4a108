//! All integration tests of this crate as one program, which is linked once. A new file needs a line here.

mod planted_bugs;
mod seeds;
