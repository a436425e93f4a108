// Assertions of kernels that the host hears of.
#ifndef MSCCLPP_ASSERT_DEVICE_HPP_
#define MSCCLPP_ASSERT_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

MSCCLPP_DEVICE_INLINE void assertionFailed(uint32_t line) {
  report(nullptr, DeviceError::Assertion, -1, line, 0);
}

}  // namespace detail
}  // namespace mscclpp

// If the condition does not hold, the host is told the line (error 7 in the process's page) and every wait ends. The
// kernel is not stopped at this place: a trap would take the whole context, and all other ranks in it, along.
#define MSCCLPP_ASSERT_DEVICE(condition, message)                            \
  do {                                                                       \
    if (!(condition)) {                                                      \
      static_cast<void>(message);                                            \
      ::mscclpp::detail::assertionFailed(static_cast<uint32_t>(__LINE__));   \
    }                                                                        \
  } while (0)

#else  // a host's compiler

#include <cassert>
#define MSCCLPP_ASSERT_DEVICE(condition, message) assert((condition) && (message))

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_ASSERT_DEVICE_HPP_
