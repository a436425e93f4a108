// Assertions in kernels that are reported to the host.
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

// If the condition does not hold, the line is reported to the host (error 7 in the process's page) and all waits end.
// The kernel continues: a trap would destroy the context, which other ranks may share.
#define MSCCLPP_ASSERT_DEVICE(condition, message)                            \
  do {                                                                       \
    if (!(condition)) {                                                      \
      static_cast<void>(message);                                            \
      ::mscclpp::detail::assertionFailed(static_cast<uint32_t>(__LINE__));   \
    }                                                                        \
  } while (0)

#else  // host compiler

#include <cassert>
#define MSCCLPP_ASSERT_DEVICE(condition, message) assert((condition) && (message))

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_ASSERT_DEVICE_HPP_
