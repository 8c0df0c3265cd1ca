// GGUF v3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensor table.
//
// Parses from a span (a mapped file, or only its head as a replica sends it to routers). Every
// count, length and offset is checked against the size of the file before use; nothing is allocated
// from an unchecked number. Views point into the span. Threads: const after Parse. Errors:
// InvalidArgument naming the field and byte offset.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla {

class GgufFile {
 public:
  // Arrays of strings keep views; numeric arrays are widened. Nested arrays are refused.
  using Value =
      std::variant<uint64_t, int64_t, double, bool, std::string_view, std::vector<std::string_view>,
                   std::vector<int64_t>, std::vector<double>>;

  struct Options {
    // True: `bytes` may end anywhere after the tensor table (tensors get no data); for tokenizers.
    bool metadata_only = false;
  };
  static StatusOr<GgufFile> Parse(std::span<const uint8_t> bytes, Options options);
  // Adds the tensors of another file of the same model. None may be there already.
  Status Join(const GgufFile& other);

  const std::map<std::string, Value, std::less<>>& metadata() const { return metadata_; }
  StatusOr<std::string_view> GetString(std::string_view key) const;
  StatusOr<uint64_t> GetUint(std::string_view key) const;
  StatusOr<double> GetFloat(std::string_view key) const;
  StatusOr<bool> GetBool(std::string_view key) const;
  // Null if absent or of another type.
  const std::vector<std::string_view>* FindStrings(std::string_view key) const;
  const std::vector<int64_t>* FindInts(std::string_view key) const;
  const std::vector<double>* FindFloats(std::string_view key) const;

  // In file order, names as in the file ("blk.0.attn_q.weight").
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Bytes from the start through the end of the tensor table: what a tokenizer needs.
  uint64_t header_bytes() const { return header_bytes_; }

 private:
  std::map<std::string, Value, std::less<>> metadata_;
  std::vector<TensorView> tensors_;
  uint64_t header_bytes_ = 0;
};

// "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; empty for an unknown name.
// Where a layer has four norms HF names them otherwise.
std::string HfTensorName(std::string_view gguf_name, bool sandwich_norms = false);

// Read-only mapping of a whole file. A file that another program shortens while it is mapped ends
// the process (SIGBUS): replace models by renaming, never in place.
class MappedFile {
 public:
  static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  // Of the file when it was opened: another, if it was written since, or is another file.
  const std::string& stamp() const { return stamp_; }
  // Whole pages of `part`, of some mapped file's bytes, no longer count as this process's memory.
  // Reading them again brings them back.
  static void ReleasePages(std::span<const uint8_t> part);

 private:
  MappedFile(const uint8_t* data, size_t size, std::string stamp)
      : data_(data), size_(size), stamp_(std::move(stamp)) {}
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::string stamp_;
};

}  // namespace flotilla
