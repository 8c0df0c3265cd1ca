// What the weights of a rank take once they are loaded, before any is: about, since ranks' shares
// differ by a few rows and each has all norms.
//
// Units: bytes. Pure. Threads: any. Errors: none.
#pragma once

#include <cstdint>

#include "common/checkpoint/checkpoint.h"
#include "worker_proc/model/backend.h"

namespace flotilla {

inline uint64_t WeightBytesOfRank(const Checkpoint& checkpoint, const Backend& backend,
                                  uint32_t ranks) {
  // An embedding that is not the head, too, stays in the file (the CPU's; a device copies it).
  const bool untied = checkpoint.Find("lm_head.weight") != nullptr;
  uint64_t bytes = 0;
  for (const TensorView& view : checkpoint.tensors()) {
    if (!untied || view.name != "model.embed_tokens.weight") bytes += backend.WeightBytes(view);
  }
  return bytes / ranks;
}

}  // namespace flotilla
