// The memory orders that publish data to another process, in one place, so that a test can build
// the ring and the collective with them weakened and show that ThreadSanitizer notices.
#pragma once

#include <atomic>

namespace flotilla {

#ifdef FLOTILLA_SHM_PLANT_RELAXED  // tests/shm only
inline constexpr std::memory_order kRingPublish = std::memory_order_relaxed;
inline constexpr std::memory_order kFlagPublish = std::memory_order_relaxed;
#else
// The write position: what makes a frame visible.
inline constexpr std::memory_order kRingPublish = std::memory_order_release;
// A rank's flag: releases its staging buffer, and is ordered before its look at `sleepers`.
inline constexpr std::memory_order kFlagPublish = std::memory_order_seq_cst;
#endif

}  // namespace flotilla
