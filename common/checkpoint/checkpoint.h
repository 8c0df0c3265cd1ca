// A model's files, whatever their format: named tensors in HF's naming plus the model's config.
//
// Tensor names are Hugging Face's ("model.layers.0.self_attn.q_proj.weight"), so that models know
// nothing of file formats. Data stays in the mapped file: a view is valid as long as its
// Checkpoint. Threads: const methods from any thread. Errors: opening validates everything that is
// later used; after a successful Open no byte outside the file can be reached through a view.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/dtype.h"
#include "common/checkpoint/model_config.h"

namespace flotilla {

// The factors of a matrix of 8-bit floats, which its values are multiplied by: of blocks of
// block_rows by block_cols, row by row, those at the end smaller.
struct ScaleGrid {
  uint64_t block_rows = 0;
  uint64_t block_cols = 0;
  std::vector<float> factors = {};  // finite

  // Of a row of a matrix of so many columns: block c / block_cols has column c's.
  std::span<const float> RowFactors(uint64_t row, uint64_t cols) const {
    const uint64_t blocks = (cols + block_cols - 1) / block_cols;
    return std::span(factors).subspan(row / block_rows * blocks, blocks);
  }
};

// A row-major matrix [rows, cols] (vectors: rows = 1). Each row is whole blocks of dtype, rows
// follow each other without gaps.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kF32;
  uint64_t rows = 0;
  uint64_t cols = 0;
  std::span<const uint8_t> data;
  const ScaleGrid* scales = nullptr;  // of kF8E4M3; the checkpoint's

  uint64_t row_bytes() const {
    const DTypeTraits& t = Traits(dtype);
    return cols / t.block_values * t.block_bytes;
  }
};

// Writes `view`'s rows [row_begin, row_end) as floats to out[(row_end-row_begin) * cols].
// Exactly ggml's dequantisation, in fp32 (no FMA): Q4_0 d*(q-8), Q4_1 d*q+m, Q5_0 d*(q-16), Q5_1
// d*q+m, Q8_0 d*q, Q4_K and Q5_K d*sc*q-dmin*m, Q6_K d*sc*(q-32). F8_E4M3: times its factor.
void DequantizeRows(const TensorView& view, uint64_t row_begin, uint64_t row_end, float* out);

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const ModelConfig& config() const = 0;
  // Null if there is none.
  virtual const TensorView* Find(std::string_view hf_name) const = 0;
  virtual const std::vector<TensorView>& tensors() const = 0;
  // SHA-256 of the weights' file(s), computed on first call (65 ms for 100 MB with SHA-NI, and as
  // long as reading them takes). on_piece: called meanwhile, about every 16 MiB.
  virtual const std::string& Digest(const std::function<void()>& on_piece) const = 0;
  const std::string& Digest() const { return Digest({}); }
  // Of a line: another, if a file of the digest was written since or is another file. Empty: not
  // known.
  virtual std::string Stamp() const { return {}; }
  // The view has been read: its pages no longer count as this process's memory, until it is read
  // again. Does nothing where no file is mapped.
  virtual void ReleasePages(const TensorView& /*view*/) const {}
  // The same of all files: also what the system mapped around what was read.
  virtual void ReleaseAllPages() const {}
};

// Opens a model by path: a .gguf file, or a folder with config.json and model.safetensors. Errors
// say what is wrong with which field of which file.
StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path);

}  // namespace flotilla
