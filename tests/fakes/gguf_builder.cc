#include "tests/fakes/gguf_builder.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "common/base/check.h"

namespace flotilla::testing {
namespace {

constexpr int kBlock = 32;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string* out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out->append(text);
}

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

float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const float mantissa = static_cast<float>(half & 0x3ff);
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024.0f, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

float InverseOrZero(uint16_t half) { return half == 0 ? 0.0f : 1.0f / HalfToFloat(half); }

uint8_t ToQuant4(float value) {
  return static_cast<uint8_t>(std::clamp(std::lround(value), 0L, 15L));
}

void QuantizeQ8_0(const float* x, float widest, std::string* out) {
  const uint16_t d = FloatToHalf(widest / 127.0f);
  Put(out, d);
  for (int j = 0; j < kBlock; ++j) {
    Put(out, static_cast<int8_t>(std::clamp(std::lround(x[j] * InverseOrZero(d)), -127L, 127L)));
  }
}

void QuantizeBlock(DType dtype, const float* x, std::string* out) {
  const float low = *std::min_element(x, x + kBlock);
  const float high = *std::max_element(x, x + kBlock);
  const float widest = std::max(std::fabs(low), std::fabs(high));
  if (dtype == DType::kQ8_0) return QuantizeQ8_0(x, widest, out);
  const bool has_min = dtype == DType::kQ4_1;
  CHECK(has_min || dtype == DType::kQ4_0);
  const uint16_t d = FloatToHalf(has_min ? (high - low) / 15.0f : widest / 7.0f);
  Put(out, d);
  if (has_min) Put(out, FloatToHalf(low));
  const auto quant = [&](int j) {
    const float scaled = (has_min ? x[j] - low : x[j]) * InverseOrZero(d);
    return ToQuant4(has_min ? scaled : scaled + 8.0f);
  };
  for (int j = 0; j < kBlock / 2; ++j) {
    Put(out, static_cast<uint8_t>(quant(j) | (quant(j + kBlock / 2) << 4)));
  }
}

}  // namespace

std::string Quantize(DType dtype, const std::vector<float>& values) {
  std::string out;
  if (dtype == DType::kF32) {
    for (const float value : values) Put(&out, value);
  } else if (dtype == DType::kF16) {
    for (const float value : values) Put(&out, FloatToHalf(value));
  } else {
    CHECK(values.size() % kBlock == 0);
    for (size_t i = 0; i < values.size(); i += kBlock) QuantizeBlock(dtype, &values[i], &out);
  }
  return out;
}

void GgufBuilder::AddRaw(std::string_view key, GgufType type, std::string_view value) {
  PutString(&keys_, key);
  Put(&keys_, type);
  keys_.append(value);
  ++key_count_;
}

void GgufBuilder::AddUint32(std::string_view key, uint32_t value) {
  std::string bytes;
  Put(&bytes, value);
  AddRaw(key, GgufType::kUint32, bytes);
}

void GgufBuilder::AddFloat32(std::string_view key, float value) {
  std::string bytes;
  Put(&bytes, value);
  AddRaw(key, GgufType::kFloat32, bytes);
}

void GgufBuilder::AddBool(std::string_view key, bool value) {
  AddRaw(key, GgufType::kBool, std::string(1, value ? '\1' : '\0'));
}

void GgufBuilder::AddString(std::string_view key, std::string_view value) {
  std::string bytes;
  PutString(&bytes, value);
  AddRaw(key, GgufType::kString, bytes);
}

void GgufBuilder::AddStrings(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes;
  Put(&bytes, GgufType::kString);
  Put<uint64_t>(&bytes, values.size());
  for (const std::string& value : values) PutString(&bytes, value);
  AddRaw(key, GgufType::kArray, bytes);
}

void GgufBuilder::AddInts(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes;
  Put(&bytes, GgufType::kInt32);
  Put<uint64_t>(&bytes, values.size());
  for (const int32_t value : values) Put(&bytes, value);
  AddRaw(key, GgufType::kArray, bytes);
}

void GgufBuilder::AddFloats(std::string_view key, const std::vector<float>& values) {
  std::string bytes;
  Put(&bytes, GgufType::kFloat32);
  Put<uint64_t>(&bytes, values.size());
  for (const float value : values) Put(&bytes, value);
  AddRaw(key, GgufType::kArray, bytes);
}

void GgufBuilder::AddTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                            std::string_view data, int64_t offset) {
  data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
  PutString(&tensors_, name);
  Put<uint32_t>(&tensors_, static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) Put(&tensors_, dim);
  Put(&tensors_, type);
  Put<uint64_t>(&tensors_, offset < 0 ? data_.size() : static_cast<uint64_t>(offset));
  data_.append(data);
  ++tensor_count_;
}

void GgufBuilder::AddMatrix(std::string_view name, uint64_t rows, uint64_t cols, DType dtype,
                            const std::vector<float>& values) {
  CHECK(values.size() == std::max<uint64_t>(rows, 1) * cols);
  std::vector<uint64_t> dims = {cols};
  if (rows > 0) dims.push_back(rows);
  AddTensor(name, dims, static_cast<uint32_t>(dtype), Quantize(dtype, values));
}

std::string GgufBuilder::Build() const {
  std::string out = "GGUF";
  Put(&out, version_);
  Put(&out, tensor_count_);
  Put(&out, key_count_);
  out += keys_;
  out += tensors_;
  out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
  return out + data_;
}

void WriteBytes(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good());
}

}  // namespace flotilla::testing
