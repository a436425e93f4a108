//! All integration tests of this crate in one binary. A new file needs a line here.

mod compile;
mod device;
mod media;
mod port;
mod proxy;
#[path = "../../ringfold-lab/src/skip.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod skip;
#[path = "../../ringfold-fabric/tests/suite/mod.rs"]
mod suite;
