#include "common/checkpoint/hf_folder.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/base/sha256.h"
#include "common/checkpoint/architecture.h"
#include "common/checkpoint/fp8_config.h"
#include "common/checkpoint/gguf.h"
#include "common/checkpoint/gguf_cursor.h"
#include "common/checkpoint/hf_config.h"
#include "common/checkpoint/safetensors.h"

namespace flotilla::internal {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 32u << 20;
constexpr size_t kMaxShards = 1024;

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Which shard has which tensor.
using WeightMap = std::map<std::string, std::string, std::less<>>;

// A shard lies in the folder itself, whatever the index says.
bool IsPlainName(std::string_view name) {
  return name.size() <= 255 && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos && name.ends_with(".safetensors");
}

StatusOr<WeightMap> ReadIndex(std::string_view text) {
  ASSIGN_OR_RETURN(const boost::json::value document,
                   ParseJsonObject(kIndex, text, kMaxIndexBytes));
  const JsonObject json(&document.get_object(), StrCat(kIndex, ": "));
  ASSIGN_OR_RETURN(const JsonObject map, json.Object("weight_map"));
  WeightMap shards;
  for (const auto& member : map.value()) {
    const std::string_view name(member.key().data(), member.key().size());
    ASSIGN_OR_RETURN(const std::string_view shard, map.String(name));
    if (!IsPlainName(shard)) {
      return map.Error(name, StrCat("is ", Quote(shard), ", not the name of a .safetensors file"));
    }
    shards.emplace(name, shard);
  }
  if (shards.empty()) return json.Error("weight_map", "is empty");
  return shards;
}

// Tensors that are no weights of their own: frequencies that old versions saved, and the copy of
// the embedding that some files have as head.
bool IsIgnored(const ModelConfig& config, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

class HfCheckpoint final : public Checkpoint {
 public:
  static StatusOr<std::unique_ptr<Checkpoint>> Open(const std::filesystem::path& folder) {
    const auto config_path = folder / "config.json";
    ASSIGN_OR_RETURN(MappedFile config_file, MappedFile::Open(config_path));
    StatusOr<ModelConfig> config = ReadHfConfig(Text(config_file));
    if (!config.ok()) return Annotate(config.status(), folder.string());
    std::unique_ptr<HfCheckpoint> checkpoint(new HfCheckpoint(*std::move(config)));
    checkpoint->config_.name = folder.filename();
    checkpoint->files_.push_back({"config.json", std::move(config_file)});
    ASSIGN_OR_RETURN(const std::optional<Fp8Config> fp8,
                     ReadHfFp8Config(Text(checkpoint->files_.back().second)));
    RETURN_IF_ERROR(checkpoint->AddShards(folder));
    if (const Status scaled = checkpoint->TakeFactors(fp8); !scaled.ok()) {
      return Annotate(scaled, folder.string());
    }
    std::sort(checkpoint->tensors_.begin(), checkpoint->tensors_.end(),
              [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    const Status fits = CheckTensors(checkpoint->config_, checkpoint->tensors_);
    if (!fits.ok()) return Annotate(fits, folder.string());
    return checkpoint;
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorView>& tensors() const override { return tensors_; }
  const TensorView* Find(std::string_view hf_name) const override {
    const auto it = std::lower_bound(
        tensors_.begin(), tensors_.end(), hf_name,
        [](const TensorView& view, std::string_view name) { return view.name < name; });
    return it == tensors_.end() || it->name != hf_name ? nullptr : &*it;
  }
  // Of the digests of the files, config.json first.
  const std::string& Digest(const std::function<void()>& on_piece) const override {
    std::call_once(digest_once_, [&] {
      std::string digests;
      for (const auto& [name, file] : files_)
        StrAppend(&digests, Sha256Hex(Text(file), on_piece), "\n");
      digest_ = Sha256Hex(digests);
    });
    return digest_;
  }
  std::string Stamp() const override {
    std::string stamp;
    for (const auto& [name, file] : files_) StrAppend(&stamp, file.stamp(), " ");
    return stamp;
  }
  void ReleasePages(const TensorView& view) const override { MappedFile::ReleasePages(view.data); }
  void ReleaseAllPages() const override {
    for (const auto& [name, file] : files_) MappedFile::ReleasePages(file.bytes());
  }

 private:
  explicit HfCheckpoint(ModelConfig config) : config_(std::move(config)) {}

  Status AddShards(const std::filesystem::path& folder) {
    std::error_code error;
    if (!std::filesystem::exists(folder / kIndex, error)) return AddShard(folder, kSingle, nullptr);
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(folder / kIndex));
    StatusOr<WeightMap> index = ReadIndex(Text(file));
    if (!index.ok()) return Annotate(index.status(), folder.string());
    std::map<std::string, size_t> shards;  // → tensors
    for (const auto& [tensor, shard] : *index) ++shards[shard];
    if (shards.size() > kMaxShards) {
      return absl::InvalidArgumentError(StrCat((folder / kIndex).string(), ": weight_map names ",
                                               shards.size(), " files; at most ", kMaxShards));
    }
    for (const auto& [shard, tensors] : shards) {
      RETURN_IF_ERROR(AddShard(folder, shard, &*index));
    }
    return OkStatus();
  }

  // With an index, the shard's tensors must be those that the index says.
  Status AddShard(const std::filesystem::path& folder, const std::string& name,
                  const WeightMap* index) {
    const std::string path = folder / name;
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    StatusOr<SafetensorsFile> shard = SafetensorsFile::Parse(file.bytes());
    if (!shard.ok()) return Annotate(shard.status(), path);
    for (const TensorView& view : shard->tensors()) {
      if (index != nullptr) {
        const auto it = index->find(view.name);
        if (it == index->end() || it->second != name) {
          return absl::InvalidArgumentError(
              StrCat(path, ": tensor ", Quote(view.name), " is not there for ", kIndex));
        }
      }
      if (IsIgnored(config_, view.name)) continue;
      for (auto& part : SplitFused(config_, ModelTensorName(config_, view.name), view)) {
        tensors_.push_back(part.view);
        tensors_.back().name = names_.emplace_back(std::move(part.name));
      }
    }
    shards_.push_back(*std::move(shard));
    files_.push_back({name, std::move(file)});
    return OkStatus();
  }

  // Tensors of factors become their matrices' scales.
  Status TakeFactors(const std::optional<Fp8Config>& fp8) {
    std::map<std::string_view, TensorView*> by_name;
    for (TensorView& view : tensors_) by_name[view.name] = &view;
    const auto wrong = [](const TensorView& view, std::string_view problem) {
      return absl::InvalidArgumentError(StrCat("tensor ", Quote(view.name), " ", problem));
    };
    for (const TensorView& view : tensors_) {
      if (!fp8.has_value()) break;
      const std::string_view name = MatrixOfFactors(view.name);
      if (name.empty() || IsIgnored(config_, name)) continue;
      const auto found = by_name.find(name);
      if (found == by_name.end()) return wrong(view, "has factors for a matrix that is not there");
      TensorView& matrix = *found->second;
      if (matrix.scales != nullptr) return wrong(matrix, "has factors twice");
      ASSIGN_OR_RETURN(ScaleGrid grid, MakeScaleGrid(*fp8, matrix, view));
      matrix.scales = &scales_.emplace_back(std::move(grid));
    }
    for (const TensorView& view : tensors_) {
      if (view.dtype != DType::kF8E4M3 || view.scales != nullptr) continue;
      return wrong(view, fp8.has_value()
                             ? "is F8_E4M3, and has no weight_scale"
                             : "is F8_E4M3, and config.json has no quantization_config");
    }
    if (!fp8.has_value()) return OkStatus();
    std::erase_if(tensors_, [&](const TensorView& view) {
      return IsUnusedFactor(view.name) || !MatrixOfFactors(view.name).empty();
    });
    return OkStatus();
  }

  // Constant after Open, but for the digest.
  ModelConfig config_;
  std::vector<std::pair<std::string, MappedFile>> files_;
  std::vector<SafetensorsFile> shards_;  // own the names
  std::vector<TensorView> tensors_;      // by name
  std::deque<std::string> names_;        // of all of them
  std::deque<ScaleGrid> scales_;         // of some of them

  mutable std::once_flag digest_once_;
  mutable std::string digest_;
};

}  // namespace

StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "models/a/"
  return HfCheckpoint::Open(path);
}

}  // namespace flotilla::internal
