#include "worker_proc/model/partition.h"

#include <algorithm>
#include <numeric>

namespace flotilla {
namespace {

constexpr uint32_t kPanelRows = 16;  // of the packed weights
constexpr uint32_t kBlockCols =
    32;  // of quantised activations, which ranks exchange in whole blocks

std::vector<RowRange> Ranges(const std::vector<uint32_t>& sizes) {
  std::vector<RowRange> ranges;
  uint32_t begin = 0;
  for (uint32_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

// `rows` in whole units; the last rank takes the incomplete one.
std::vector<RowRange> SplitRows(uint32_t rows, uint32_t unit, uint32_t ranks) {
  const uint32_t units = (rows + unit - 1) / unit;
  std::vector<RowRange> ranges = Ranges(SplitWork(units, std::vector<double>(ranks, 0.0)));
  for (RowRange& range : ranges) {
    range.begin = std::min(range.begin * unit, rows);
    range.end = std::min(range.end * unit, rows);
  }
  return ranges;
}

// Whole kv groups to ranks, or, if there are more ranks than kv heads, one kv head to several ranks
// that share its query heads.
void SplitHeads(uint32_t kv_heads, uint32_t group, TpPartition* partition) {
  const uint32_t size = partition->size;
  if (size <= kv_heads) {
    partition->kv_heads = Ranges(SplitWork(kv_heads, std::vector<double>(size, 0.0)));
    for (const RowRange& kv : partition->kv_heads) {
      partition->heads.push_back({kv.begin * group, kv.end * group});
    }
    return;
  }
  std::vector<uint32_t> heads;
  uint32_t kv_head = 0;
  for (const uint32_t ranks : SplitWork(size, std::vector<double>(kv_heads, 0.0))) {
    partition->kv_heads.insert(partition->kv_heads.end(), ranks, {kv_head, kv_head + 1});
    const std::vector<uint32_t> shares = SplitWork(group, std::vector<double>(ranks, 0.0));
    heads.insert(heads.end(), shares.begin(), shares.end());
    ++kv_head;
  }
  partition->heads = Ranges(heads);
}

}  // namespace

std::vector<uint32_t> SplitWork(uint32_t units, const std::vector<double>& fixed_work) {
  std::vector<uint32_t> sizes(fixed_work.size(), 0);
  for (uint32_t unit = 0; unit < units; ++unit) {
    size_t least = 0;
    for (size_t r = 1; r < sizes.size(); ++r) {
      if (fixed_work[r] + sizes[r] < fixed_work[least] + sizes[least]) least = r;
    }
    ++sizes[least];
  }
  return sizes;
}

StatusOr<TpPartition> MakeTpPartition(const ModelConfig& config, uint32_t rank, uint32_t size) {
  if (size == 0 || rank >= size) {
    return absl::InvalidArgumentError(StrCat("--rank ", rank, " is not below --tp ", size));
  }
  const uint32_t kv_heads = config.num_key_value_heads;
  if (kv_heads == 0 || config.num_attention_heads % kv_heads != 0) {
    return absl::InvalidArgumentError(StrCat("model has ", config.num_attention_heads,
                                             " query heads, no multiple of its ", kv_heads,
                                             " kv heads"));
  }
  if (size > config.num_attention_heads) {
    return absl::InvalidArgumentError(StrCat("--tp ", size, " is more than the model's ",
                                             config.num_attention_heads, " query heads; use --tp ",
                                             config.num_attention_heads, " or less"));
  }
  TpPartition partition;
  partition.rank = rank;
  partition.size = size;
  SplitHeads(kv_heads, config.num_attention_heads / kv_heads, &partition);
  partition.hidden = SplitRows(config.hidden_size, kPanelRows, size);
  partition.intermediate = SplitRows(config.intermediate_size, kBlockCols, size);
  partition.vocab = SplitRows(config.vocab_size, kPanelRows, size);
  return partition;
}

}  // namespace flotilla
