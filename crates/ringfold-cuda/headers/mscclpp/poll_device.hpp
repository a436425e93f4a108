// Loops that wait while a condition holds, with an end. They end as all waits do (abort_device.hpp): by the flag or
// the time limit of the process's page, or after so many looks (negative: any number). The host is told error 1.
#ifndef MSCCLPP_POLL_DEVICE_HPP_
#define MSCCLPP_POLL_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

// Waits while the condition holds.
#define POLL_MAYBE_JAILBREAK(condition, maxSpinCount)                                                               \
  do {                                                                                                              \
    ::mscclpp::Patience mscclppPatience(nullptr, ::mscclpp::DeviceError::Signal, -1,                                \
                                        static_cast<int64_t>(maxSpinCount));                                        \
    while (condition) {                                                                                             \
      if (mscclppPatience.isOver()) break;                                                                          \
    }                                                                                                               \
  } while (0)

// Waits while both conditions hold. The first one is looked at first, so it should be the cheaper one.
#define OR_POLL_MAYBE_JAILBREAK(condition1, condition2, maxSpinCount) \
  POLL_MAYBE_JAILBREAK((condition1) && (condition2), maxSpinCount)

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_POLL_DEVICE_HPP_
