//! The embedded device headers.

/// Name and text of every header.
pub const HEADERS: &[(&str, &str)] = &[
    ("mscclpp/abort_device.hpp", include_str!("../headers/mscclpp/abort_device.hpp")),
    ("mscclpp/access_device.hpp", include_str!("../headers/mscclpp/access_device.hpp")),
    ("mscclpp/assert_device.hpp", include_str!("../headers/mscclpp/assert_device.hpp")),
    ("mscclpp/concurrency_device.hpp", include_str!("../headers/mscclpp/concurrency_device.hpp")),
    ("mscclpp/copy_device.hpp", include_str!("../headers/mscclpp/copy_device.hpp")),
    ("mscclpp/device.hpp", include_str!("../headers/mscclpp/device.hpp")),
    ("mscclpp/fifo_device.hpp", include_str!("../headers/mscclpp/fifo_device.hpp")),
    ("mscclpp/memory_channel_device.hpp", include_str!("../headers/mscclpp/memory_channel_device.hpp")),
    ("mscclpp/nvls_device.hpp", include_str!("../headers/mscclpp/nvls_device.hpp")),
    ("mscclpp/packet_device.hpp", include_str!("../headers/mscclpp/packet_device.hpp")),
    ("mscclpp/poll_device.hpp", include_str!("../headers/mscclpp/poll_device.hpp")),
    ("mscclpp/port_channel_device.hpp", include_str!("../headers/mscclpp/port_channel_device.hpp")),
    ("mscclpp/proxy_channel_device.hpp", include_str!("../headers/mscclpp/proxy_channel_device.hpp")),
    ("mscclpp/semaphore_device.hpp", include_str!("../headers/mscclpp/semaphore_device.hpp")),
    ("mscclpp/sm_channel_device.hpp", include_str!("../headers/mscclpp/sm_channel_device.hpp")),
    ("mscclpp/switch_channel_device.hpp", include_str!("../headers/mscclpp/switch_channel_device.hpp")),
];
