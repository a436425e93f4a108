//! Code shared by the language bindings of the elastic layer: the result codes of PCCL, checks of arguments that come as
//! numbers and addresses, the tags in flight, and the log.
#![forbid(unsafe_code)]

pub mod address_range;
pub mod alias;
pub mod all_reduce_args;
pub mod communicator_handle;
pub mod enum_values;
pub mod in_flight;
pub mod log;
pub mod result;
pub mod tls_files;
