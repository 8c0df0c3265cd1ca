// Writes safetensors files for tests. Threads: one. Errors: none; what it is told is not checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla::testing {

// As a file has them: the header's length before it.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data;
}

class SafetensorsBuilder {
 public:
  // dtype: "F32", "F8_E4M3" …
  void Add(std::string_view name, std::string_view dtype, const std::vector<uint64_t>& shape,
           std::string_view bytes) {
    StrAppend(&header_, header_.empty() ? "{" : ",", "\"", name, "\": {\"dtype\": \"", dtype,
              "\", \"shape\": [");
    for (size_t i = 0; i < shape.size(); ++i) StrAppend(&header_, i == 0 ? "" : ", ", shape[i]);
    StrAppend(&header_, "], \"data_offsets\": [", data_.size(), ", ", data_.size() + bytes.size(),
              "]}");
    data_.append(bytes);
  }
  std::string Build() const {
    return SafetensorsBytes(header_.empty() ? "{}" : header_ + "}", data_);
  }

 private:
  std::string header_;
  std::string data_;
};

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace flotilla::testing
