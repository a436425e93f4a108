//! The embedded device headers.

macro_rules! headers {
    ($($name:literal)*) => {
        &[$((
            concat!($name, ".hpp"),
            include_str!(concat!("../headers/", $name, ".hpp")),
        )),*]
    };
}

/// Name and text of every header.
#[rustfmt::skip]
pub const HEADERS: &[(&str, &str)] = headers! {
    "mscclpp/abort_device" "mscclpp/access_device" "mscclpp/assert_device" "mscclpp/atomic_device" "mscclpp/bulk_device"
    "mscclpp/concurrency_device" "mscclpp/copy_device" "mscclpp/device" "mscclpp/fifo_device"
    "mscclpp/memory_channel_device" "mscclpp/nvls_device" "mscclpp/packet_device" "mscclpp/poll_device"
    "mscclpp/port_channel_device" "mscclpp/proxy_channel_device" "mscclpp/semaphore_device" "mscclpp/sm_channel_device"
    "mscclpp/switch_channel_device" "torchcomms/window_device"
};
