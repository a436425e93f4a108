// Switch channels as they were called before.
#ifndef MSCCLPP_NVLS_DEVICE_HPP_
#define MSCCLPP_NVLS_DEVICE_HPP_

#include <mscclpp/switch_channel_device.hpp>

namespace mscclpp {

using DeviceMulticastPointerDeviceHandle = SwitchChannelDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_NVLS_DEVICE_HPP_
