// Quantize of gguf_builder.h: every block type of GGUF that models are read from.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla::testing {
namespace {

constexpr int kBlock = 32;
constexpr int kBlocks = 8;  // of a super-block

// Nearest binary16; the values here are small, so no infinities and no care for ties.
uint16_t FloatToHalf(float value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  CHECK(magnitude < 65504.0f);
  if (magnitude < 0x1p-14f) {
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::lround(magnitude * 0x1p24f)));
  }
  int exponent = 0;
  const float mantissa = std::frexp(magnitude, &exponent);                         // in [0.5, 1)
  const uint32_t scaled = static_cast<uint32_t>(std::lround(mantissa * 2048.0f));  // 1024..2048
  // The hidden bit of `scaled` adds the missing 1 to the exponent, and so does its carry.
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 13) << 10) + scaled));
}

// Cut off, not rounded.
uint16_t ToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const float mantissa = static_cast<float>(half & 0x3ff);
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024.0f, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

float InverseOrZero(uint16_t half) { return half == 0 ? 0.0f : 1.0f / HalfToFloat(half); }

uint32_t ToQuant(float value, uint32_t largest) {
  return static_cast<uint32_t>(std::clamp(std::lround(value), 0L, static_cast<long>(largest)));
}

void QuantizeQ8_0(const float* x, float widest, std::string* out) {
  const uint16_t d = FloatToHalf(widest / 127.0f);
  Put(out, d);
  for (int j = 0; j < kBlock; ++j) {
    Put(out, static_cast<int8_t>(std::clamp(std::lround(x[j] * InverseOrZero(d)), -127L, 127L)));
  }
}

// Q4_0, Q4_1, Q5_0, Q5_1: fifth bits in a word before the nibbles.
void QuantizeBlock(DType dtype, const float* x, std::string* out) {
  const float low = *std::min_element(x, x + kBlock);
  const float high = *std::max_element(x, x + kBlock);
  const float widest = std::max(std::fabs(low), std::fabs(high));
  if (dtype == DType::kQ8_0) return QuantizeQ8_0(x, widest, out);
  const bool has_min = dtype == DType::kQ4_1 || dtype == DType::kQ5_1;
  const bool five = dtype == DType::kQ5_0 || dtype == DType::kQ5_1;
  CHECK(has_min || five || dtype == DType::kQ4_0);
  const uint32_t largest = five ? 31 : 15, half = largest / 2;
  const float zero = has_min ? 0.0f : static_cast<float>(half + 1);
  const uint16_t d = FloatToHalf(has_min ? (high - low) / static_cast<float>(largest)
                                         : widest / static_cast<float>(half));
  Put(out, d);
  if (has_min) Put(out, FloatToHalf(low));
  uint32_t quants[kBlock];
  uint32_t fifth = 0;
  for (int j = 0; j < kBlock; ++j) {
    quants[j] = ToQuant((has_min ? x[j] - low : x[j]) * InverseOrZero(d) + zero, largest);
    fifth |= (quants[j] >> 4) << j;
  }
  if (five) Put(out, fifth);
  for (int j = 0; j < kBlock / 2; ++j) {
    Put(out, static_cast<uint8_t>((quants[j] & 15) | (quants[j + kBlock / 2] << 4)));
  }
}

// Values of a block as steps of `scale` above `-min`.
struct SubBlock {
  float scale;
  float min;
};

// The 6-bit scales and mins of a super-block, as GGUF packs them, and what they stand for.
void PutScales(uint16_t d, uint16_t dmin, SubBlock (&subs)[kBlocks], std::string* out) {
  uint8_t bytes[12] = {};
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t scale = ToQuant(subs[b].scale * InverseOrZero(d), 63);
    const uint32_t min = ToQuant(subs[b].min * InverseOrZero(dmin), 63);
    subs[b] = {static_cast<float>(scale) * HalfToFloat(d),
               static_cast<float>(min) * HalfToFloat(dmin)};
    if (b < 4) {
      bytes[b] = static_cast<uint8_t>(scale);
      bytes[b + 4] = static_cast<uint8_t>(min);
    } else {
      bytes[b + 4] = static_cast<uint8_t>((scale & 15) | ((min & 15) << 4));
      bytes[b - 4] = static_cast<uint8_t>(bytes[b - 4] | ((scale >> 4) << 6));
      bytes[b] = static_cast<uint8_t>(bytes[b] | ((min >> 4) << 6));
    }
  }
  Put(out, d);
  Put(out, dmin);
  out->append(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

void QuantizeQ45_K(bool five, const float* x, std::string* out) {
  const uint32_t largest = five ? 31 : 15;
  SubBlock subs[kBlocks];
  SubBlock widest = {0, 0};
  for (int b = 0; b < kBlocks; ++b) {
    const float* block = x + b * kBlock;
    const float min = -std::min(0.0f, *std::min_element(block, block + kBlock));
    subs[b] = {(*std::max_element(block, block + kBlock) + min) / static_cast<float>(largest), min};
    widest = {std::max(widest.scale, subs[b].scale), std::max(widest.min, subs[b].min)};
  }
  PutScales(FloatToHalf(widest.scale / 63), FloatToHalf(widest.min / 63), subs, out);
  uint8_t fifth[kBlock] = {};
  uint8_t nibbles[kBlocks / 2][kBlock] = {};
  for (int i = 0; i < kBlocks * kBlock; ++i) {
    const int b = i / kBlock;
    const float inverse = subs[b].scale == 0 ? 0.0f : 1.0f / subs[b].scale;
    const uint32_t q = ToQuant((x[i] + subs[b].min) * inverse, largest);
    nibbles[b / 2][i % kBlock] |= static_cast<uint8_t>((q & 15) << (b % 2 * 4));
    fifth[i % kBlock] |= static_cast<uint8_t>((q >> 4) << b);
  }
  if (five) out->append(reinterpret_cast<const char*>(fifth), sizeof(fifth));
  out->append(reinterpret_cast<const char*>(nibbles), sizeof(nibbles));
}

void QuantizeQ6_K(const float* x, std::string* out) {
  constexpr int kScales = 16;
  float scales[kScales];
  for (int s = 0; s < kScales; ++s) {
    scales[s] = 0;
    for (int j = 0; j < 16; ++j) scales[s] = std::max(scales[s], std::fabs(x[s * 16 + j]) / 31);
  }
  const uint16_t d = FloatToHalf(*std::max_element(scales, scales + kScales) / 127);
  uint8_t lower[2][2][kBlock] = {};  // [half of the super-block][block % 2][value]
  uint8_t upper[2][kBlock] = {};
  int8_t quantised[kScales];
  for (int i = 0; i < kBlocks * kBlock; ++i) {
    const int b = i / kBlock;
    const auto scale = static_cast<int8_t>(ToQuant(scales[i / 16] * InverseOrZero(d), 127));
    quantised[i / 16] = scale;
    const float inverse = scale == 0 ? 0.0f : InverseOrZero(d) / scale;
    const uint32_t q = ToQuant(x[i] * inverse + 32, 63);
    lower[b / 4][b % 2][i % kBlock] |= static_cast<uint8_t>((q & 15) << (b % 4 / 2 * 4));
    upper[b / 4][i % kBlock] |= static_cast<uint8_t>((q >> 4) << (b % 4 * 2));
  }
  out->append(reinterpret_cast<const char*>(lower), sizeof(lower));
  out->append(reinterpret_cast<const char*>(upper), sizeof(upper));
  out->append(reinterpret_cast<const char*>(quantised), sizeof(quantised));
  Put(out, d);
}

}  // namespace

std::string Quantize(DType dtype, const std::vector<float>& values) {
  std::string out;
  if (dtype == DType::kF32) {
    for (const float value : values) Put(&out, value);
    return out;
  }
  if (dtype == DType::kF16) {
    for (const float value : values) Put(&out, FloatToHalf(value));
    return out;
  }
  if (dtype == DType::kBF16) {
    for (const float value : values) Put(&out, ToBFloat16(value));
    return out;
  }
  const size_t step = Traits(dtype).block_values;
  CHECK(values.size() % step == 0);
  for (size_t i = 0; i < values.size(); i += step) {
    if (dtype == DType::kQ6_K) {
      QuantizeQ6_K(&values[i], &out);
    } else if (step > kBlock) {
      QuantizeQ45_K(dtype == DType::kQ5_K, &values[i], &out);
    } else {
      QuantizeBlock(dtype, &values[i], &out);
    }
  }
  return out;
}

}  // namespace flotilla::testing
