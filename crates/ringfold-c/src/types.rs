//! The structs of `pccl.h` and `ccoip_inet.h`, which describe the fields.
//!
//! Enums and input `bool`s are integers here: C may write any value, and an invalid Rust enum is undefined behaviour.
#![allow(missing_docs)]

use core::ffi::{c_char, c_int, c_void};

/// `ccoip_inet_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InetAddress {
    /// 0 for IPv4, 1 for IPv6.
    pub protocol: c_int,
    pub ipv4: [u8; 4],
    pub ipv6: [u8; 16],
}

/// `ccoip_socket_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SocketAddress {
    pub inet: InetAddress,
    pub port: u16,
}

/// `pcclCommCreateParams_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommCreateParams {
    pub master_address: SocketAddress,
    pub peer_group: u32,
    pub p2p_connection_pool_size: u32,
}

/// `pcclReduceOperandDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceOperandDescriptor {
    /// A `pcclDataType_t`.
    pub datatype: c_int,
    /// A `pcclDistributionHint_t`.
    pub distribution_hint: c_int,
}

/// `pcclQuantizationOptions_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QuantizationOptions {
    /// A `pcclDataType_t`; anything if the algorithm is none.
    pub quantized_datatype: c_int,
    /// A `pcclQuantizationAlgorithm_t`.
    pub algorithm: c_int,
}

/// `pcclReduceDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceDescriptor {
    pub count: usize,
    /// A `pcclRedOp_t`.
    pub op: c_int,
    pub tag: u64,
    pub src_descriptor: ReduceOperandDescriptor,
    pub quantization_options: QuantizationOptions,
}

/// `pcclReduceOpDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceOpDescriptor {
    pub sendbuf: *mut c_void,
    pub recvbuf: *mut c_void,
    pub descriptor: ReduceDescriptor,
}

/// `pcclAsyncReduceOp_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AsyncReduceOp {
    pub comm: *mut Comm,
    pub tag: u64,
}

/// `pcclReduceInfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReduceInfo {
    pub local_world_size: u32,
    pub tx_bytes: u64,
    pub rx_bytes: u64,
}

/// `pcclTraffic_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
    pub local_sent: u64,
    pub local_received: u64,
}

impl From<ringfold::Traffic> for Traffic {
    fn from(traffic: ringfold::Traffic) -> Self {
        let ringfold::Traffic { sent, received, local_sent, local_received } = traffic;
        Self { sent, received, local_sent, local_received }
    }
}

/// `pcclPeerTraffic_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PeerTraffic {
    pub peer: [u8; 16],
    pub traffic: Traffic,
}

/// `pcclTensorInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TensorInfo {
    pub name: *const c_char,
    pub data: *mut c_void,
    pub count: usize,
    /// A `pcclDataType_t`.
    pub datatype: c_int,
    /// A `pcclDeviceType_t`.
    pub device_type: c_int,
    /// A `bool`; false is 0.
    pub allow_content_inequality: u8,
}

/// `pcclSharedState_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SharedState {
    pub revision: u64,
    pub count: usize,
    pub infos: *mut TensorInfo,
}

/// `pcclSharedStateSyncInfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SharedStateSyncInfo {
    pub tx_bytes: u64,
    pub rx_bytes: u64,
}

/// `pcclBuildInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BuildInfo {
    pub has_cuda_support: bool,
}

/// `pcclComm_t`: an opaque handle, never dereferenced.
#[derive(Debug)]
#[repr(C)]
pub struct Comm {
    nothing: [u8; 0],
}

/// `pcclMasterInstance_t`: an opaque handle, never dereferenced.
#[derive(Debug)]
#[repr(C)]
pub struct MasterInstance {
    nothing: [u8; 0],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_have_the_layout_of_c() {
        assert_eq!((size_of::<InetAddress>(), size_of::<SocketAddress>()), (24, 28));
        assert_eq!((size_of::<CommCreateParams>(), offset_of!(CommCreateParams, peer_group)), (36, 28));
        assert_eq!((size_of::<ReduceDescriptor>(), offset_of!(ReduceDescriptor, tag)), (40, 16));
        assert_eq!((size_of::<TensorInfo>(), offset_of!(TensorInfo, allow_content_inequality)), (40, 32));
        assert_eq!((size_of::<Traffic>(), size_of::<PeerTraffic>()), (32, 48));
        assert_eq!((size_of::<SharedState>(), size_of::<ReduceInfo>()), (24, 24));
        assert_eq!((size_of::<ReduceOpDescriptor>(), size_of::<AsyncReduceOp>()), (56, 16));
    }
}
