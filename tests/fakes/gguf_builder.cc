#include "tests/fakes/gguf_builder.h"

#include <algorithm>
#include <fstream>

#include "common/base/check.h"

namespace flotilla::testing {
namespace {

void PutString(std::string* out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out->append(text);
}

}  // namespace

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
