// How long a piece of work takes at the least: what it computes and reads, divided by what the
// machine computes and reads in a second, whichever of the two is longer.
//
// Units: multiply-accumulates (MACs, two operations each), bytes, seconds. Pure. Errors: none; a
// limit of 0 where there is work makes the time infinite. Source: the roofline model (Williams,
// Waterman, Patterson 2009).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flotilla::bench {

// A second's worth of the machine.
struct Peaks {
  double read_bytes = 0;
  double int4_macs = 0;  // 4-bit weights times int8 activations
  double int8_macs = 0;
  double bf16_macs = 0;  // nothing of ours uses it yet
  double fp32_macs = 0;

  void RaiseTo(const Peaks& other);  // the larger of both, one by one
};

struct Work {
  double int4_macs = 0;
  double int8_macs = 0;
  double fp32_macs = 0;
  double bytes = 0;

  Work& operator+=(const Work& other);
  friend Work operator*(Work work, double times);
  double macs() const { return int4_macs + int8_macs + fp32_macs; }
};

struct Limit {
  double seconds = 0;
  const char* bound = "";  // "read" | "int8" | "fp32"
};
Limit LimitOf(const Work& work, const Peaks& peaks);
// Of works one after the other; the last one's bound.
Limit LimitOf(std::span<const Work> works, const Peaks& peaks);

// Times of one kernel's passes; shares are of the best, as the limits are the best of theirs.
struct Times {
  double best = 0;
  double median = 0;
};
Times TimesOf(std::vector<double> seconds);  // at least one

// One sequence of a step: q_tokens new tokens, which are the last of its kv_tokens.
struct SequenceSize {
  uint32_t q_tokens = 0;
  uint32_t kv_tokens = 0;
};
// Keys that its query tokens see, all together: each sees the last `window` up to itself (0: all).
double VisibleKeys(const SequenceSize& sequence, uint32_t window = 0);

struct AttentionShape {
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t qk_dim = 0;
  uint32_t v_dim = 0;
  uint64_t key_bytes = 0;  // K and V of one key and head in memory
  uint32_t window = 0;
};
// Of one layer: QK and PV of every visible key; K and V that a query of the sequence sees are read
// once.
Work AttentionWorkOf(const AttentionShape& shape, std::span<const SequenceSize> sequences);

}  // namespace flotilla::bench
