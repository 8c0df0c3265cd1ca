// libFuzzer: any bytes as a GGUF. What parses lies within the file, however it is asked for; what
// opens is a model whose every tensor can be read.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/gguf.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

using Bytes = std::span<const uint8_t>;

std::string_view View(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Within(std::string_view part, std::string_view whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

// OpenCheckpoint takes a path: one file in memory, so that no execution touches a disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("gguf_fuzz", MFD_CLOEXEC)) { CHECK(fd_.valid()); }
  std::string Write(Bytes bytes) const {
    CHECK(ftruncate(fd_.get(), static_cast<off_t>(bytes.size())) == 0);
    CHECK(pwrite(fd_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    return StrCat("/proc/self/fd/", fd_.get());
  }

 private:
  const UniqueFd fd_;
};

// Each getter takes or refuses each key, whatever its type.
void CheckMetadata(const GgufFile& file, Bytes bytes) {
  for (const auto& [key, value] : file.metadata()) {
    const bool known = file.GetUint(key).ok() + file.GetFloat(key).ok() + file.GetBool(key).ok() +
                           file.GetString(key).ok() + (file.FindStrings(key) != nullptr) +
                           (file.FindInts(key) != nullptr) + (file.FindFloats(key) != nullptr) ==
                       1;
    const auto* number = std::get_if<int64_t>(&value);
    CHECK(known || (number != nullptr && *number < 0));
    if (const auto text = file.GetString(key); text.ok()) CHECK(Within(*text, View(bytes)));
    if (const auto* list = file.FindStrings(key)) {
      for (std::string_view text : *list) CHECK(Within(text, View(bytes)));
    }
  }
}

void FuzzParse(Bytes bytes) {
  const StatusOr<GgufFile> file = GgufFile::Parse(bytes, {.metadata_only = false});
  const StatusOr<GgufFile> head = GgufFile::Parse(bytes, {.metadata_only = true});
  if (!head.ok()) {
    CHECK(!file.ok());
    CHECK(absl::IsInvalidArgument(file.status()) && absl::IsInvalidArgument(head.status()));
    return;
  }
  CHECK(head->header_bytes() <= bytes.size());
  CheckMetadata(*head, bytes);
  for (const TensorView& tensor : head->tensors()) CHECK(tensor.data.empty());
  // Its head alone says the same.
  const auto again = GgufFile::Parse(bytes.first(head->header_bytes()), {.metadata_only = true});
  CHECK(again.ok() && again->tensors().size() == head->tensors().size());
  if (!file.ok()) return;
  for (const TensorView& tensor : file->tensors()) {
    CHECK(tensor.data.size() == tensor.rows * tensor.row_bytes());
    CHECK(Within(View(tensor.data), View(bytes)));
    fuzz::Touch(View(tensor.data));
    HfTensorName(tensor.name);
  }
}

void CheckModel(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  CHECK(config.num_attention_heads % config.num_key_value_heads == 0);
  CHECK(config.head_dim % 2 == 0 && config.rope_dim <= config.head_dim);
  CHECK(config.num_experts_per_tok <= config.num_experts && config.num_experts <= 1024);
  CHECK(checkpoint.tensors().size() >= 2 + 9 * size_t{config.num_hidden_layers});
  CHECK(checkpoint.Find("model.norm.bias") == nullptr);
  std::vector<float> row;
  for (const TensorView& tensor : checkpoint.tensors()) {
    CHECK(checkpoint.Find(tensor.name) == &tensor);
    row.resize(tensor.cols);
    DequantizeRows(tensor, 0, 1, row.data());
    DequantizeRows(tensor, tensor.rows - 1, tensor.rows, row.data());
    // Pages that were given back are read again when they are needed.
    const std::string bytes(View(tensor.data));
    checkpoint.ReleasePages(tensor);
    CHECK(View(tensor.data) == bytes);
  }
  checkpoint.ReleaseAllPages();
  CHECK(checkpoint.Digest().size() == 64);
  CHECK(checkpoint.Stamp().find('\n') == std::string::npos);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const MemoryFile* const file = new MemoryFile();
  FuzzParse({data, size});
  const auto checkpoint = OpenCheckpoint(file->Write({data, size}));
  if (checkpoint.ok()) CheckModel(**checkpoint);
  return 0;
}
