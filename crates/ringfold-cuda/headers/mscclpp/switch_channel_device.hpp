// Switch channels: multicast and reductions within the switch. They don't exist yet: these names compile, so that a
// kernel which uses them only where `is_nvls_supported()` says so can be built. Called all the same, they do nothing
// and tell the host error 6.
#ifndef MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_
#define MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/device.hpp>

namespace mscclpp {

struct SwitchChannelDeviceHandle {
  void* devicePtr;
  void* mcPtr;
  size_t bufferSize;

#if defined(MSCCLPP_DEVICE_CUDA)
  // The sum of one element of all ranks.
  template <typename T>
  MSCCLPP_DEVICE_INLINE T reduce(uint64_t) {
    return nothing<T>();
  }

  // One element to all ranks.
  template <typename T>
  MSCCLPP_DEVICE_INLINE void broadcast(uint64_t, T) {
    refuse();
  }

  template <typename T>
  MSCCLPP_DEVICE_INLINE static T multimemLoadReduce(const T*) {
    return nothing<T>();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemLoadReduce(Value& val, const T*) {
    val = nothing<Value>();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemStore(const Value&, T*) {
    refuse();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemStoreReduce(const Value&, T*) {
    refuse();
  }

 private:
  MSCCLPP_DEVICE_INLINE static void refuse() { detail::report(nullptr, DeviceError::Argument, -1, 0, 0); }

  template <typename T>
  MSCCLPP_DEVICE_INLINE static T nothing() {
    refuse();
    return T{};
  }
#endif
};
static_assert(sizeof(SwitchChannelDeviceHandle) == 24, "three words");

}  // namespace mscclpp

#endif  // MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_
