// Cuts a step's ragged attention into items of similar cost for the compute threads.
//
// Query tokens are what is cut first. Where a few of them see so many keys that they would keep one
// thread busy while others have nothing left, their keys are cut too, at the fixed boundaries of
// kernels.h; the results of the splits are then merged.
//
// Units: tokens; the cost of a query token is the number of keys it sees, at most the window. Pure;
// the vectors' memory is reused. How the work is cut never changes a bit of the result.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {

struct AttentionWork {
  uint32_t num_seqs = 0;
  const uint32_t* cu_q_lens = nullptr;  // [num_seqs + 1]
  const uint32_t* kv_lens = nullptr;    // [num_seqs]
  uint32_t num_kv_heads = 0;
  uint32_t group = 1;       // query heads a kv head
  uint32_t num_pieces = 1;  // wanted: a few for each thread
  uint32_t window = 0;      // 0: none
  // Rows (query token × head of the group) of splits that there is memory for; 0: no keys are cut.
  uint32_t max_part_rows = 0;
};

// What threads do: all items, then all merges.
struct AttentionItems {
  struct Merge {
    AttentionItem item;  // as a whole; item.part_row: of its first split
    uint32_t num_parts = 0;
  };
  // Costliest first: a thread that comes free late then gets a small one.
  std::vector<AttentionItem> items;
  std::vector<Merge> merges;
};

// Query tokens of an item at most, so that its result stays in a first-level cache.
uint32_t MaxItemTokens(uint32_t group);

void MakeAttentionItems(const AttentionWork& work, AttentionItems* out);

// A step's items, made once for all layers of a kind (heads and window).
class StepAttentionItems {
 public:
  void BeginStep() { used_ = 0; }
  const AttentionItems& For(const AttentionWork& work);
  // For the items of any step of so many tokens and sequences, of the kinds seen so far.
  void MakeRoom(uint32_t num_tokens, uint32_t num_seqs, uint32_t max_part_rows);

 private:
  struct Kind {
    uint32_t num_kv_heads = 0;
    uint32_t group = 0;
    uint32_t window = 0;
    AttentionItems items;
  };
  std::deque<Kind> kinds_;
  size_t used_ = 0;  // the first kinds_ are this step's
};

}  // namespace flotilla::cpu
