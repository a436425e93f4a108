//! The embedded device headers.

macro_rules! headers {
    ($($name:literal)*) => {
        &[$((
            concat!("mscclpp/", $name, ".hpp"),
            include_str!(concat!("../headers/mscclpp/", $name, ".hpp")),
        )),*]
    };
}

/// Name and text of every header.
#[rustfmt::skip]
pub const HEADERS: &[(&str, &str)] = headers! {
    "abort_device" "access_device" "assert_device" "atomic_device" "bulk_device" "concurrency_device" "copy_device"
    "device" "fifo_device" "memory_channel_device" "nvls_device" "packet_device" "poll_device" "port_channel_device"
    "proxy_channel_device" "semaphore_device" "sm_channel_device" "switch_channel_device"
};
