//! `libpccl`: the C face of Ringfold, as `include/pccl.h` declares and documents it.
//!
//! A thin face: it checks what C can't promise, converts, calls the crate `ringfold`, and turns errors into
//! codes. Numbers from C become enums only after a look at them, handles are looked up and never followed, and
//! no panic leaves the library.
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
pub use init::{pcclGetBuildInfo, pcclInit};
pub use last_error::pcclGetLastError;
pub use master::{
    pcclCreateMaster, pcclDestroyMaster, pcclGetMasterAddress, pcclInterruptMaster,
    pcclMasterAwaitTermination, pcclRunMaster,
};
pub use result::{ResultCode, pcclGetErrorString};
pub use shared_state::pcclSynchronizeSharedState;
pub use types::*;
