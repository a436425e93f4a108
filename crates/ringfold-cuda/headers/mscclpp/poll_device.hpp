// Bounded loops that wait while a condition holds. They end as all waits do (abort_device.hpp): by the flag or the time
// limit of the process's page, or after `maxSpinCount` polls (negative: no limit). The error is reported as 1.
#ifndef MSCCLPP_POLL_DEVICE_HPP_
#define MSCCLPP_POLL_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

// Waits while the condition holds.
#define POLL_MAYBE_JAILBREAK(condition, maxSpinCount)                                                               \
  do {                                                                                                              \
    ::mscclpp::SpinGuard mscclppSpinGuard(nullptr, ::mscclpp::DeviceError::Signal, -1,                              \
                                          static_cast<int64_t>(maxSpinCount));                                      \
    while (condition) {                                                                                             \
      if (mscclppSpinGuard.shouldStop()) break;                                                                     \
    }                                                                                                               \
  } while (0)

// Waits while both conditions hold. The first one is evaluated first, so it should be the cheaper one.
#define OR_POLL_MAYBE_JAILBREAK(condition1, condition2, maxSpinCount) \
  POLL_MAYBE_JAILBREAK((condition1) && (condition2), maxSpinCount)

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_POLL_DEVICE_HPP_
