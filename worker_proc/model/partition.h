// How a model is split over tensor-parallel ranks.
//
// Whole kv groups (a kv head with its query heads) go to ranks. With more ranks than kv heads each
// rank has one kv head, its keys and values included, which neighbours have too, and a share of its
// query heads. Every other matrix is split by output rows: o_proj and down_proj too, after an
// all-gather of their input, so that no sum crosses ranks and all TP degrees give the same bits.
// Ranks meet after qkv + attention, o_proj, gate_up, down_proj and the head: they wait for the
// slowest of each, so each of these is split as evenly as whole panels of 16 rows allow (gate_up:
// blocks of 32, as its output may travel quantised), by itself; a rank with fewer kv groups can't
// make up for it elsewhere.
//
// Units: heads, rows. Pure functions. Errors: InvalidArgument when there are more ranks than query
// heads.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/model_config.h"

namespace flotilla {

struct RowRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
};

// Splits `units` of equal cost over ranks that already have fixed_work[r] (in units) before they
// next meet: the largest total is as small as possible, and earlier ranks take what is left over.
std::vector<uint32_t> SplitWork(uint32_t units, const std::vector<double>& fixed_work);

struct TpPartition {
  uint32_t rank = 0;
  uint32_t size = 1;
  // One entry a rank.
  std::vector<RowRange> kv_heads;      // ranks may share one
  std::vector<RowRange> heads;         // query heads: a whole number for each of kv_heads
  std::vector<RowRange> hidden;        // output rows of o_proj and down_proj
  std::vector<RowRange> intermediate;  // output rows of gate and of up
  std::vector<RowRange> vocab;         // output rows of the head

  const RowRange& my(const std::vector<RowRange>& ranges) const { return ranges[rank]; }
};

StatusOr<TpPartition> MakeTpPartition(const ModelConfig& config, uint32_t rank, uint32_t size);

}  // namespace flotilla
