#include "worker_proc/runner/padding_policy.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"

namespace flotilla {
namespace {

constexpr uint32_t kSmallestTokenPadding = 16;

// `wanted` up to `most`, or powers of two from `least` on; then `most`.
StatusOr<std::vector<uint32_t>> Paddings(const char* flag, std::vector<uint32_t> wanted,
                                         uint32_t least, uint32_t most) {
  if (wanted.empty()) {
    for (uint64_t size = least; size < most; size *= 2)
      wanted.push_back(static_cast<uint32_t>(size));
  }
  uint32_t before = 0;
  for (const uint32_t padding : wanted) {
    if (padding <= before) {
      return absl::InvalidArgumentError(
          StrCat(flag, ": ", padding, " follows ", before, "; they must rise, from 1 on"));
    }
    before = padding;
  }
  if (!wanted.empty() && wanted.back() > most) {
    Log().warn("paddings above the largest step are left out {} {}", Kv("flag", flag),
               Kv("largest_step", most));
  }
  std::erase_if(wanted, [&](uint32_t padding) { return padding >= most; });
  wanted.push_back(most);
  return wanted;
}

}  // namespace

PlanShape GetMaxPaddedSize(const PaddingOptions& options) {
  return {options.chunked_prefill_size + options.max_running_requests,
          options.max_running_requests};
}

StatusOr<PaddingPolicy> PaddingPolicy::Create(const PaddingOptions& options) {
  const PlanShape most = GetMaxPaddedSize(options);
  ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens,
                   Paddings("--precompile-token-paddings", options.precompile_token_paddings,
                            std::min(kSmallestTokenPadding, most.num_tokens), most.num_tokens));
  ASSIGN_OR_RETURN(
      const std::vector<uint32_t> batch_sizes,
      Paddings("--precompile-bs-paddings", options.precompile_bs_paddings, 1, most.num_seqs));
  PaddingPolicy policy;
  for (const uint32_t count : tokens) policy.buckets_.push_back({count, most.num_seqs});
  policy.num_prefill_ = tokens.size();
  for (const uint32_t size : batch_sizes) policy.buckets_.push_back({size, size});
  return policy;
}

size_t PaddingPolicy::BucketOf(ForwardMode mode, const PlanShape& step) const {
  const bool decode = mode == ForwardMode::kDecode;
  const auto begin = buckets_.begin() + static_cast<ptrdiff_t>(decode ? num_prefill_ : 0);
  const auto end = decode ? buckets_.end() : begin + static_cast<ptrdiff_t>(num_prefill_);
  const auto at = std::find_if(begin, end, [&](const PlanShape& bucket) {
    return bucket.num_tokens >= step.num_tokens && bucket.num_seqs >= step.num_seqs;
  });
  CHECK(at != end);
  return static_cast<size_t>(at - buckets_.begin());
}

}  // namespace flotilla
