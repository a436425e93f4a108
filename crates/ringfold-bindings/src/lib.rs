//! What the faces of the elastic layer have in common, whatever language they speak: the result codes of PCCL, a look
//! at arguments that come as numbers and addresses, which tags are in flight, and the environment's token and log.
#![forbid(unsafe_code)]

pub mod alias;
pub mod in_flight;
pub mod join_token;
pub mod log;
pub mod number;
pub mod operands;
pub mod result;
pub mod session;
pub mod span;
