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
  const bool untied = checkpoint.Find("lm_head.weight") != nullptr;
  uint64_t shared = 0;
  uint64_t own = 0;
  for (const TensorView& view : checkpoint.tensors()) {
    if (view.name.ends_with(".mlp.gate.weight")) {  // each rank has all of a router
      own += Backend::RouterBytes(view);
      continue;
    }
    const bool embedding = view.name == "model.embed_tokens.weight";
    if (!untied || !embedding) shared += backend.WeightBytes(view);
    if (embedding && (untied || ranks > 1)) own += backend.EmbeddingBytes(view);
  }
  return shared / ranks + own;
}

}  // namespace flotilla
