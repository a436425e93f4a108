//! Collective communication: elastic runs whose peers join and leave, and groups of fixed ranks.
//!
//! [`Communicator`] and [`Master`] form an elastic run: a peer that dies costs the operation in flight, not the run.
//! [`Group`] has fixed ranks and no master: if a rank dies, the group fails on all ranks.
#![forbid(unsafe_code)]

mod all_reduce;
mod board;
mod communicator;
mod control;
mod data_plane;
mod device_group;
mod device_plan;
pub mod doctor;
mod driver;
mod element;
mod engine;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod journal;
mod limits;
mod master;
mod master_address;
mod observer;
mod process_name;
mod protection;
mod relay;
pub mod settings;
mod shared_state;
mod staging;
mod traffic;
mod transfer;
mod tuning_file;
mod uplink;
mod window;
mod work;
mod workspace;

pub use all_reduce::{AllReduce, Buffers, ReduceInfo, Reduction};
pub use communicator::{Communicator, CommunicatorBuilder, GroupMember};
pub use device_group::{
    CallEnd, DeviceGroup, DeviceGroupWindow, DeviceTransfer, KernelSources, PacketLimit, PacketLimitOrigin,
    Unsupported,
};
pub use element::Element;
pub use error::Error;
pub use group::{
    AddressExchange, Bootstrap, BootstrapListener, Group, GroupBuffers, GroupBuilder, GroupOp, GroupSlices,
    GroupWork, Media, OPERATIONS, OpArguments, Operation, TransferTag, finish_retired,
};
pub use master::{
    EventEntry, HTTP_PORT, HistorySecond, MASTER_PORT, Master, MasterBuilder, MasterInfo, Status,
    ThroughputStatus,
};
pub use observer::{Observer, ObserverOptions};
pub use relay::{RELAY_PORT, Relay, RelayBuilder, RelayStatistics};
pub use ringfold_cuda as cuda;
pub use ringfold_fabric::join_token::{JoinToken, TokenFileError};
pub use ringfold_fabric::memory::{Memory, View};
pub use ringfold_fabric::shared_buffer::SharedBuffer;
pub use ringfold_fabric::shared_memory::SharedMemory;
pub use ringfold_fabric::tls::TlsFiles;
pub use ringfold_fabric::traffic::Traffic;
pub use ringfold_proto::cause::{
    Cause, Departure, JoinRejection, JointCall, MasterLoss, MissingPeer, PeerName, PeerTrouble,
    ProtocolViolation, Removal, StateRejection, Wait, WaitingPeer,
};
pub use ringfold_proto::dtype::DType;
pub use ringfold_proto::epoch::Attributes;
pub use ringfold_proto::group_call::{GroupCall, GroupCallKind};
pub use ringfold_proto::id::ReplicaId;
pub use ringfold_proto::integrity::{Integrity, InvalidIntegrity};
pub use ringfold_proto::message::Replica;
pub use ringfold_proto::peer::{Failure, FailureKind};
pub use ringfold_proto::quantization::{Quantization, QuantizationAlgorithm};
pub use ringfold_proto::recovery::Recover;
pub use ringfold_proto::reduce_op::ReduceOp;
pub use ringfold_proto::shared_state::SyncStrategy;
pub use ringfold_proto::status::{
    EdgeStatus, GroupStatus, Health, MasterEntry, MasterRole, Membership, MissingStatus, PeerStatus,
    RunStatus, WaitStatus,
};
pub use ringfold_proto::timing::Timing;
pub use ringfold_proto::tuning::{Algorithm, Tuning};
pub use ringfold_settings::bandwidth::{Bandwidth, InvalidBandwidth};
pub use shared_state::{SharedState, StateMemory, StateTensor, SyncCompany, SyncInfo};
pub use traffic::{PeerTraffic, TrafficReport};
pub use tuning_file::TuningFile;
pub use window::{Window, WindowMemory, WindowWork};
pub use work::{Pending, Work};
