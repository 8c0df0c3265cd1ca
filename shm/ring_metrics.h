// The metrics of a ring, named once: its writer tells how full it is, its readers what they refuse.
//
// Labels: ring is "step" (scheduler → workers) or "result" (rank 0 → scheduler). Threads: any.
#pragma once

#include "common/base/metrics.h"

namespace flotilla {

inline MetricSpec RingFillRatioSpec(const char* ring) {
  return {"flotilla_shm_ring_fill_ratio",
          "Share of the ring that the slowest reader had not released after the last write.",
          {{"ring", ring}}};
}

inline MetricSpec RejectedFramesSpec(const char* ring, prometheus::Labels labels = {}) {
  labels["ring"] = ring;
  return {"flotilla_shm_rejected_frames_total", "Frames of the ring that its reader refused.",
          std::move(labels)};
}

}  // namespace flotilla
