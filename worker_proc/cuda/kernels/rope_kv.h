// What lies between the projection of q, k and v and attention, in one pass: the norms of each head
// of q and k (if the model has them), RoPE, and the keys' and values' way into the paged cache.
//
// A token's row of qkv is [q heads | k heads | v heads], float. q and k are normed and rotated in
// place; k and v then go to the token's slot. A slot of -1 writes nothing (a padded row).
//
// Layouts: caches [page][kv_head][page_size][dim] of kv_type. table float [position][rope_dim / 2]
// [cos, sin]. A warp a head of a token. Threads: the stream's. Errors: none. Source:
// "RoFormer", arXiv 2104.09864; ours.
#pragma once

#include "worker_proc/cuda/kernels/launch.h"

namespace flotilla::cuda {

// One layer's cache.
struct KvPages {
  void* k = nullptr;
  void* v = nullptr;
  Element type = Element::kBFloat16;
  uint32_t page_size = 0;  // tokens
  uint32_t num_kv_heads = 0;
  uint32_t qk_dim = 0;
  uint32_t v_dim = 0;
};

struct RopeKvArgs {
  float* qkv = nullptr;
  uint32_t tokens = 0;
  uint32_t num_heads = 0;
  KvPages kv;
  bool writes_kv = true;
  const float* q_norm = nullptr;  // [qk_dim]; null: no norms
  const float* k_norm = nullptr;
  float eps = 0;
  const float* table = nullptr;
  uint32_t rope_dim = 0;                  // leading dims of a head that rotate
  bool interleaved = false;               // pairs (2i, 2i + 1), else (i, i + rope_dim / 2)
  const uint32_t* positions = nullptr;    // [tokens]
  const int64_t* slot_mapping = nullptr;  // [tokens]: page * page_size + offset; -1: no write
};

}  // namespace flotilla::cuda
