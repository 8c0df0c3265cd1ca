#include "common/checkpoint/checkpoint.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "common/base/sha256.h"
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/gguf_config.h"
#include "common/checkpoint/gguf_cursor.h"
#include "common/checkpoint/gguf_shards.h"
#include "common/checkpoint/hf_folder.h"

namespace flotilla {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  static StatusOr<std::unique_ptr<Checkpoint>> Open(GgufShards shards) {
    const GgufFile& gguf = shards.gguf;
    ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("general.architecture"));
    ASSIGN_OR_RETURN(const internal::Architecture* architecture,
                     internal::FindGgufArchitecture(name, internal::HasExperts(gguf, name)));
    ASSIGN_OR_RETURN(ModelConfig config, internal::ReadGgufConfig(gguf, *architecture));
    std::unique_ptr<GgufCheckpoint> checkpoint(
        new GgufCheckpoint(std::move(shards.files), std::move(config)));
    RETURN_IF_ERROR(checkpoint->AddTensors(gguf.tensors()));
    RETURN_IF_ERROR(internal::CheckTensors(checkpoint->config_, checkpoint->tensors_));
    return checkpoint;
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorView>& tensors() const override { return tensors_; }

  const TensorView* Find(std::string_view hf_name) const override {
    const auto it = index_.find(hf_name);
    return it == index_.end() ? nullptr : &tensors_[it->second];
  }

  // The file's; of several the digest of theirs, as of a folder.
  const std::string& Digest(const std::function<void()>& on_piece) const override {
    std::call_once(digest_once_, [&] {
      std::string digests;
      for (const MappedFile& file : files_) {
        const std::span<const uint8_t> bytes = file.bytes();
        digest_ = Sha256Hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, on_piece);
        StrAppend(&digests, digest_, "\n");
      }
      if (files_.size() > 1) digest_ = Sha256Hex(digests);
    });
    return digest_;
  }
  std::string Stamp() const override {
    std::string stamp;
    for (const MappedFile& file : files_) StrAppend(&stamp, file.stamp(), " ");
    return stamp;
  }
  void ReleasePages(const TensorView& view) const override { MappedFile::ReleasePages(view.data); }
  void ReleaseAllPages() const override {
    for (const MappedFile& file : files_) MappedFile::ReleasePages(file.bytes());
  }

 private:
  GgufCheckpoint(std::vector<MappedFile> files, ModelConfig config)
      : files_(std::move(files)), config_(std::move(config)) {}

  // The index's nodes own the names that the views show.
  Status AddTensors(const std::vector<TensorView>& gguf_tensors) {
    for (const TensorView& source : gguf_tensors) {
      if (internal::IsRopeFactors(source.name)) continue;  // the config has them
      std::string name = HfTensorName(source.name, config_.sandwich_norms);
      if (name.empty()) {
        return absl::InvalidArgumentError(StrCat("tensor ", internal::Quote(source.name),
                                                 " is not known; this variant of the "
                                                 "architecture is not supported"));
      }
      for (auto& part : internal::SplitFused(config_, std::move(name), source)) {
        const auto [it, inserted] = index_.emplace(std::move(part.name), tensors_.size());
        if (!inserted) {
          return absl::InvalidArgumentError(
              StrCat("two tensors are named ", internal::Quote(it->first)));
        }
        tensors_.push_back(part.view);
        tensors_.back().name = it->first;
      }
    }
    return OkStatus();
  }

  // Constant after Open, but for the digest.
  const std::vector<MappedFile> files_;
  const ModelConfig config_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<TensorView> tensors_;

  mutable std::once_flag digest_once_;
  mutable std::string digest_;
};

}  // namespace

StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return internal::OpenHfFolder(path);
  ASSIGN_OR_RETURN(GgufShards shards, GgufShards::Open(path));
  auto checkpoint = GgufCheckpoint::Open(std::move(shards));
  if (!checkpoint.ok()) return Annotate(checkpoint.status(), path);
  return checkpoint;
}

}  // namespace flotilla
