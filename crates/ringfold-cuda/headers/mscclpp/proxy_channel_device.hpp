// The older name of port_channel_device.hpp.
#ifndef MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_

#include <mscclpp/port_channel_device.hpp>

#endif  // MSCCLPP_PROXY_CHANNEL_DEVICE_HPP_
