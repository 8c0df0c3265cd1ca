// One safetensors file: a length, a JSON header with the name, type, shape and place of each
// tensor, and their bytes.
//
// Parses from a span (a mapped file). Every number is checked against the size of the file before
// use, and as the format asks, the tensors cover all bytes behind the header without gap or
// overlap. Types: F32, F16, BF16, F8_E4M3. Views and their names point into the span and this
// object. Threads: const after Parse. Errors: InvalidArgument naming the tensor. Source:
// https://github.com/huggingface/safetensors (the format's description).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla {

class SafetensorsFile {
 public:
  static StatusOr<SafetensorsFile> Parse(std::span<const uint8_t> bytes);

  // In the order of their bytes.
  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  std::vector<std::unique_ptr<std::string>> names_;  // what the views show
  std::vector<TensorView> tensors_;
};

}  // namespace flotilla
