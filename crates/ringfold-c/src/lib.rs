//! `libpccl`: the C API of Ringfold, declared and documented in `include/pccl.h`.
//!
//! It checks and converts arguments, calls the crate `ringfold`, and converts errors to codes. Enum values are checked,
//! handles are looked up and never dereferenced, and no panic leaves the library.
#![allow(non_snake_case, reason = "the functions have the names of pccl.h")]

mod address;
mod all_reduce;
mod communicator;
mod handles;
mod init;
mod last_error;
mod master;
mod request;
mod result;
mod shared_state;
mod types;

pub use all_reduce::{
    pcclAllReduce, pcclAllReduceAsync, pcclAllReduceMultipleWithRetry, pcclAwaitAsyncReduce,
};
pub use communicator::{
    pcclAreNewPeersPending, pcclArePeersPending, pcclConnect, pcclCreateCommunicator,
    pcclDestroyCommunicator, pcclGetAttribute, pcclOptimizeTopology, pcclUpdateTopology,
};
pub use init::{pcclGetBuildInfo, pcclInit, pcclSetOption, pcclSetTls};
pub use last_error::pcclGetLastError;
pub use master::{
    pcclCreateMaster, pcclDestroyMaster, pcclGetMasterAddress, pcclInterruptMaster,
    pcclMasterAwaitTermination, pcclRunMaster,
};
pub use result::{ResultCode, pcclGetErrorString};
pub use shared_state::pcclSynchronizeSharedState;
pub use types::*;
