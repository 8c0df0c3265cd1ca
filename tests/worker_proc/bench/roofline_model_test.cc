#include "worker_proc/bench/roofline_model.h"

#include <gtest/gtest.h>

#include <limits>

namespace flotilla::bench {
namespace {

Peaks Machine() {
  Peaks peaks;
  peaks.read_bytes = 20e9;
  peaks.int4_macs = 200e9;
  peaks.int8_macs = 100e9;
  peaks.fp32_macs = 50e9;
  return peaks;
}

Work OfBytes(double bytes) {
  Work work;
  work.bytes = bytes;
  return work;
}

TEST(LimitTest, TheLongerOfReadingAndComputing) {
  Work work;
  work.int4_macs = 4e9;  // 20 ms
  work.int8_macs = 1e9;  // 10 ms
  work.fp32_macs = 1e9;  // 20 ms
  work.bytes = 0.8e9;    // 40 ms
  EXPECT_DOUBLE_EQ(LimitOf(work, Machine()).seconds, 0.05);
  EXPECT_STREQ(LimitOf(work, Machine()).bound, "int8");
  work.int4_macs = 0;
  EXPECT_DOUBLE_EQ(LimitOf(work, Machine()).seconds, 0.04);
  EXPECT_STREQ(LimitOf(work, Machine()).bound, "read");
  work.bytes = 0;
  EXPECT_DOUBLE_EQ(LimitOf(work, Machine()).seconds, 0.03);
  EXPECT_STREQ(LimitOf(work, Machine()).bound, "fp32");
}

TEST(LimitTest, WorksOneAfterTheOtherAddUp) {
  Work compute;
  compute.int8_macs = 1e9;
  const Work both[] = {OfBytes(1e9), compute};  // 50 ms, then 10 ms
  EXPECT_DOUBLE_EQ(LimitOf(both, Machine()).seconds, 0.06);
  // Together they would overlap.
  Work sum = both[0];
  sum += both[1];
  EXPECT_DOUBLE_EQ(LimitOf(sum, Machine()).seconds, 0.05);
}

TEST(LimitTest, WhatTheMachineLacksTakesForEver) {
  Work work;
  work.int4_macs = 1;
  EXPECT_EQ(LimitOf(work, Peaks()).seconds, std::numeric_limits<double>::infinity());
  EXPECT_EQ(LimitOf(Work(), Peaks()).seconds, 0);
}

TEST(WorkTest, ScalesAndAdds) {
  Work work{1, 2, 3, 4};
  work += Work{10, 20, 30, 40} * 2;
  EXPECT_EQ(work.int4_macs, 21);
  EXPECT_EQ(work.int8_macs, 42);
  EXPECT_EQ(work.fp32_macs, 63);
  EXPECT_EQ(work.bytes, 84);
  EXPECT_EQ(work.macs(), 126);
}

TEST(PeaksTest, RaiseTakesEachLargerOne) {
  Peaks a = Machine();
  Peaks b;
  b.read_bytes = 30e9;
  b.bf16_macs = 7e9;
  a.RaiseTo(b);
  EXPECT_EQ(a.read_bytes, 30e9);
  EXPECT_EQ(a.bf16_macs, 7e9);
  EXPECT_EQ(a.int4_macs, 200e9);
  EXPECT_EQ(a.fp32_macs, 50e9);
}

TEST(TimesTest, BestAndMedian) {
  EXPECT_EQ(TimesOf({3, 1, 2}).best, 1);
  EXPECT_EQ(TimesOf({3, 1, 2}).median, 2);
  EXPECT_EQ(TimesOf({5}).median, 5);
}

// Counted key by key, as a query attends to every position up to its own, or to the last of them.
double CountKeys(const SequenceSize& sequence, uint32_t window = 0) {
  double keys = 0;
  for (uint32_t q = 0; q < sequence.q_tokens; ++q) {
    const uint32_t position = sequence.kv_tokens - sequence.q_tokens + q;
    for (uint32_t key = 0; key <= position; ++key) {
      if (window == 0 || position - key < window) ++keys;
    }
  }
  return keys;
}

TEST(AttentionWorkTest, CountsEveryVisibleKey) {
  for (const SequenceSize size :
       {SequenceSize{1, 1}, {1, 192}, {512, 8192}, {128, 128}, {7, 100}, {0, 5}}) {
    for (const uint32_t window : {0u, 1u, 100u, 8000u}) {
      EXPECT_EQ(VisibleKeys(size, window), CountKeys(size, window))
          << size.q_tokens << " of " << size.kv_tokens << ", window " << window;
    }
  }
}

TEST(AttentionWorkTest, EachQueryHeadComputesEachKvHeadIsReadOnce) {
  const AttentionShape shape{9, 3, 64, 32, 96 * 2};
  const SequenceSize sequences[] = {{1, 192}, {4, 10}};
  const Work work = AttentionWorkOf(shape, sequences);
  // A key costs 64 MACs in QK and 32 in PV for each of 9 heads; 192 + (7 + 8 + 9 + 10) are seen.
  EXPECT_EQ(work.fp32_macs, (192 + 34) * 9 * 96.0);
  // 202 tokens of 3 heads of 96 elements of two bytes.
  EXPECT_EQ(work.bytes, 202 * 3 * 96 * 2.0);
  EXPECT_EQ(work.int4_macs + work.int8_macs, 0);
}

TEST(AttentionWorkTest, OfKeysThatNoQuerySeesNothingIsRead) {
  const AttentionShape shape{9, 3, 64, 32, 96 * 2, 50};
  const SequenceSize sequences[] = {{1, 192}, {4, 10}, {30, 192}};
  const Work work = AttentionWorkOf(shape, sequences);
  EXPECT_EQ(work.fp32_macs, (50 + 34 + 30 * 50) * 9 * 96.0);
  EXPECT_EQ(work.bytes, (50 + 10 + 79) * 3 * 96 * 2.0);
}

}  // namespace
}  // namespace flotilla::bench
