#include "worker_proc/bench/roofline_model.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla::bench {
namespace {

double SecondsOf(double amount, double peak) { return amount > 0 ? amount / peak : 0; }

}  // namespace

void Peaks::RaiseTo(const Peaks& other) {
  read_bytes = std::max(read_bytes, other.read_bytes);
  int4_macs = std::max(int4_macs, other.int4_macs);
  int8_macs = std::max(int8_macs, other.int8_macs);
  bf16_macs = std::max(bf16_macs, other.bf16_macs);
  fp32_macs = std::max(fp32_macs, other.fp32_macs);
}

Work& Work::operator+=(const Work& other) {
  int4_macs += other.int4_macs;
  int8_macs += other.int8_macs;
  fp32_macs += other.fp32_macs;
  bytes += other.bytes;
  return *this;
}

Work operator*(Work work, double times) {
  work.int4_macs *= times;
  work.int8_macs *= times;
  work.fp32_macs *= times;
  work.bytes *= times;
  return work;
}

Limit LimitOf(const Work& work, const Peaks& peaks) {
  const double read = SecondsOf(work.bytes, peaks.read_bytes);
  // One thread's multipliers do one kind after the other.
  const double int8 =
      SecondsOf(work.int4_macs, peaks.int4_macs) + SecondsOf(work.int8_macs, peaks.int8_macs);
  const double fp32 = SecondsOf(work.fp32_macs, peaks.fp32_macs);
  if (read >= int8 + fp32) return {read, "read"};
  return {int8 + fp32, int8 >= fp32 ? "int8" : "fp32"};
}

Limit LimitOf(std::span<const Work> works, const Peaks& peaks) {
  Limit limit;
  for (const Work& work : works) {
    const Limit own = LimitOf(work, peaks);
    limit = {limit.seconds + own.seconds, own.bound};
  }
  return limit;
}

Times TimesOf(std::vector<double> seconds) {
  CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

double VisibleKeys(const SequenceSize& sequence, uint32_t window) {
  // The queries at the positions [first, end) see position + 1 keys, or `window` of them.
  const double end = sequence.kv_tokens;
  const double first = end - sequence.q_tokens;
  const double full = window == 0 ? end : std::clamp<double>(window, first, end);
  return (full * (full + 1) - first * (first + 1)) / 2 + (end - full) * window;
}

Work AttentionWorkOf(const AttentionShape& shape, std::span<const SequenceSize> sequences) {
  Work work;
  const double dims = shape.qk_dim + shape.v_dim;
  for (const SequenceSize& sequence : sequences) {
    work.fp32_macs += VisibleKeys(sequence, shape.window) * shape.num_heads * dims;
    const double reach = double{1} * sequence.q_tokens + shape.window - 1;
    const double keys =
        shape.window == 0 ? sequence.kv_tokens : std::min<double>(sequence.kv_tokens, reach);
    work.bytes += keys * shape.num_kv_heads * static_cast<double>(shape.key_bytes);
  }
  return work;
}

}  // namespace flotilla::bench
