//! The structs of `pccl.h` and `ccoip_inet.h`, field by field.
//!
//! Enums are plain integers here, and so is `bool`: C may write anything into them, and a Rust enum that holds
//! a number it does not know is undefined behaviour.

use core::ffi::{c_char, c_int, c_void};

/// `ccoip_inet_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InetAddress {
    /// 0 for IPv4, 1 for IPv6.
    pub protocol: c_int,
    /// In the order in which it is written.
    pub ipv4: [u8; 4],
    /// In network order.
    pub ipv6: [u8; 16],
}

/// `ccoip_socket_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SocketAddress {
    /// The address.
    pub inet: InetAddress,
    /// The port, in host byte order.
    pub port: u16,
}

/// `pcclCommCreateParams_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommCreateParams {
    /// Where the master listens.
    pub master_address: SocketAddress,
    /// The peer group.
    pub peer_group: u32,
    /// Connections with each neighbour; 0 is the default.
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
    /// Elements.
    pub count: usize,
    /// A `pcclRedOp_t`.
    pub op: c_int,
    /// The tag.
    pub tag: u64,
    /// What the elements are.
    pub src_descriptor: ReduceOperandDescriptor,
    /// How they travel.
    pub quantization_options: QuantizationOptions,
}

/// `pcclReduceOpDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceOpDescriptor {
    /// The input.
    pub sendbuf: *mut c_void,
    /// The result.
    pub recvbuf: *mut c_void,
    /// What to do.
    pub descriptor: ReduceDescriptor,
}

/// `pcclAsyncReduceOp_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AsyncReduceOp {
    /// Whose operation it is.
    pub comm: *mut Comm,
    /// Under which tag.
    pub tag: u64,
}

/// `pcclReduceInfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReduceInfo {
    /// Peers that took part.
    pub local_world_size: u32,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
}

/// `pcclTensorInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TensorInfo {
    /// The key.
    pub name: *const c_char,
    /// The contents.
    pub data: *mut c_void,
    /// Elements.
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
    /// The revision, in and out.
    pub revision: u64,
    /// Entries.
    pub count: usize,
    /// The entries.
    pub infos: *mut TensorInfo,
}

/// `pcclSharedStateSyncInfo_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SharedStateSyncInfo {
    /// Bytes of tensors sent.
    pub tx_bytes: u64,
    /// Bytes of tensors received.
    pub rx_bytes: u64,
}

/// `pcclBuildInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BuildInfo {
    /// Whether tensors may lie on a GPU.
    pub has_cuda_support: bool,
}

/// `pcclComm_t`: nothing is behind the pointer, it is a name.
#[derive(Debug)]
#[repr(C)]
pub struct Comm {
    nothing: [u8; 0],
}

/// `pcclMasterInstance_t`: nothing is behind the pointer, it is a name.
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
    fn structs_are_laid_out_as_c_lays_them_out() {
        assert_eq!((size_of::<InetAddress>(), size_of::<SocketAddress>()), (24, 28));
        assert_eq!((size_of::<CommCreateParams>(), offset_of!(CommCreateParams, peer_group)), (36, 28));
        assert_eq!((size_of::<ReduceDescriptor>(), offset_of!(ReduceDescriptor, tag)), (40, 16));
        assert_eq!((size_of::<TensorInfo>(), offset_of!(TensorInfo, allow_content_inequality)), (40, 32));
        assert_eq!((size_of::<SharedState>(), size_of::<ReduceInfo>()), (24, 24));
        assert_eq!((size_of::<ReduceOpDescriptor>(), size_of::<AsyncReduceOp>()), (56, 16));
    }
}
