// Embedding: out = scale * the tokens' rows of a table.
//
// Shapes: table [vocabulary, cols] of any type; ids [tokens], each a row of it (the worker checked
// its plan), or below 0: -2 - slot, whose last token it is (runner/forward_batch.h's TokenOfSlot;
// where that is -1, row 0, whose result nobody wants); last_tokens [slots], if there are such; out
// float [tokens, cols]. One block a token. Threads: the stream's. Errors: none. Source: ours.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

struct EmbeddingArgs {
  const void* table = nullptr;
  Element table_type = Element::kFloat32;
  const int32_t* ids = nullptr;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  float scale = 1;
  float* out = nullptr;
  const int32_t* last_tokens = nullptr;
};

}  // namespace flotilla::cuda
