//! All integration tests of this crate, as one program: it is linked once. A new file needs a line here.
#![forbid(unsafe_code)]

mod churn;
mod elastic;
mod hostile;
mod manners;
mod master;
mod network;
mod partition;
mod restart;
mod sharing;
mod stage;
mod vanishing;
