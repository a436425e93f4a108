// The older name of switch_channel_device.hpp.
#ifndef MSCCLPP_NVLS_DEVICE_HPP_
#define MSCCLPP_NVLS_DEVICE_HPP_

#include <mscclpp/switch_channel_device.hpp>

namespace mscclpp {

using DeviceMulticastPointerDeviceHandle = SwitchChannelDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_NVLS_DEVICE_HPP_
