// Switch channels (multicast and reductions in the switch) are unsupported. These names exist so that kernels which use
// them only if `is_nvls_supported()` can be compiled. A call does nothing and reports error 6 to the host.
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
  // Returns the sum of one element of all ranks.
  template <typename T>
  MSCCLPP_DEVICE_INLINE T reduce(uint64_t) {
    return unsupported<T>();
  }

  // Sends one element to all ranks.
  template <typename T>
  MSCCLPP_DEVICE_INLINE void broadcast(uint64_t, T) {
    reportUnsupported();
  }

  template <typename T>
  MSCCLPP_DEVICE_INLINE static T multimemLoadReduce(const T*) {
    return unsupported<T>();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemLoadReduce(Value& val, const T*) {
    val = unsupported<Value>();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemStore(const Value&, T*) {
    reportUnsupported();
  }
  template <typename Value, typename T>
  MSCCLPP_DEVICE_INLINE static void multimemStoreReduce(const Value&, T*) {
    reportUnsupported();
  }

 private:
  MSCCLPP_DEVICE_INLINE static void reportUnsupported() { detail::report(nullptr, DeviceError::Argument, -1, 0, 0); }

  template <typename T>
  MSCCLPP_DEVICE_INLINE static T unsupported() {
    reportUnsupported();
    return T{};
  }
#endif
};
static_assert(sizeof(SwitchChannelDeviceHandle) == 24, "three words");

}  // namespace mscclpp

#endif  // MSCCLPP_SWITCH_CHANNEL_DEVICE_HPP_
