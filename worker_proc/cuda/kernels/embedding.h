// Embedding: out = scale * the tokens' rows of a table.
//
// Shapes: table [vocabulary, cols] of any type; ids [tokens], each a row of it (the worker checked
// its plan); out float [tokens, cols]. One block a token. Threads: the stream's. Errors: none.
// Source: ours.
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
};

}  // namespace flotilla::cuda
