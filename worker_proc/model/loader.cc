#include "worker_proc/model/loader.h"

#include <utility>
#include <vector>

namespace flotilla {

WeightLoader::WeightLoader(const Checkpoint* checkpoint, Backend* backend,
                           std::span<const PackedModule> packed_modules, Progress progress)
    : checkpoint_(checkpoint),
      backend_(backend),
      packed_modules_(packed_modules),
      progress_(std::move(progress)) {
  for (const TensorView& view : checkpoint->tensors()) total_bytes_ += view.data.size();
}

bool WeightLoader::Has(const std::string& module) const {
  return checkpoint_->Find(module + ".weight") != nullptr;
}

StatusOr<const TensorView*> WeightLoader::Find(const std::string& name, uint64_t rows,
                                               uint64_t cols) {
  const TensorView* view = checkpoint_->Find(name);
  if (view == nullptr) {
    return absl::NotFoundError(StrCat("the model file has no tensor ", name));
  }
  if (view->rows != rows || view->cols != cols) {
    return absl::InvalidArgumentError(StrCat("tensor ", name, " is ", view->rows, " x ", view->cols,
                                             ", the config says ", rows, " x ", cols));
  }
  used_.insert(name);
  return view;
}

// What was packed from the file is not held twice. Of a matrix that was read whole no more is read.
void WeightLoader::Finish(const TensorView& view, uint64_t rows) {
  checkpoint_->ReleasePages(view);
  if (&view == whole_embedding_) return;
  bytes_read_ += rows * view.row_bytes();
  if (progress_) progress_(bytes_read_, total_bytes_);
}

StatusOr<std::vector<WeightRows>> WeightLoader::RowsOf(const std::string& module,
                                                       std::span<const Shard> shards,
                                                       const LinearShape& shape) {
  // "a.b.qkv_proj" → parent "a.b." and leaf "qkv_proj"
  const size_t dot = module.rfind('.');
  const size_t leaf_at = dot == std::string::npos ? 0 : dot + 1;
  const std::string parent = module.substr(0, leaf_at);
  const std::string_view leaf = std::string_view(module).substr(leaf_at);
  std::vector<std::string> sources;
  for (const PackedModule& entry : packed_modules_) {
    if (entry.packed == leaf) sources.push_back(parent + std::string(entry.source));
  }
  if (sources.empty()) sources.push_back(module);
  if (sources.size() != shards.size()) {
    return absl::InternalError(
        StrCat(module, " has ", sources.size(), " sources, not ", shards.size()));
  }
  std::vector<WeightRows> rows;
  for (size_t i = 0; i < sources.size(); ++i) {
    const uint32_t full_rows = shards[i].full_rows;
    WeightRows part = {nullptr, shards[i].rows.begin, shards[i].rows.end, nullptr};
    ASSIGN_OR_RETURN(part.view, Find(sources[i] + ".weight", full_rows, shape.in_features));
    if (shape.bias) {
      ASSIGN_OR_RETURN(part.bias, Find(sources[i] + ".bias", 1, full_rows));
    }
    rows.push_back(part);
  }
  return rows;
}

StatusOr<std::unique_ptr<LinearWeight>> WeightLoader::Linear(const std::string& module,
                                                             std::span<const Shard> shards,
                                                             const LinearShape& shape) {
  ASSIGN_OR_RETURN(const std::vector<WeightRows> rows, RowsOf(module, shards, shape));
  ASSIGN_OR_RETURN(std::unique_ptr<LinearWeight> weight, backend_->LoadLinear(rows));
  for (const WeightRows& part : rows) Finish(*part.view, part.end - part.begin);
  return weight;
}

StatusOr<std::unique_ptr<ExpertsWeight>> WeightLoader::Experts(const std::string& prefix,
                                                               uint32_t num_experts,
                                                               const std::string& leaf,
                                                               std::span<const Shard> shards,
                                                               const LinearShape& shape) {
  std::vector<std::vector<WeightRows>> experts;
  for (uint32_t i = 0; i < num_experts; ++i) {
    ASSIGN_OR_RETURN(experts.emplace_back(), RowsOf(StrCat(prefix, i, ".", leaf), shards, shape));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertsWeight> weight, backend_->LoadExperts(experts));
  for (const std::vector<WeightRows>& rows : experts) {
    for (const WeightRows& part : rows) Finish(*part.view, part.end - part.begin);
  }
  return weight;
}

StatusOr<std::unique_ptr<LinearWeight>> WeightLoader::Router(const std::string& module,
                                                             uint32_t num_experts,
                                                             uint32_t in_features) {
  ASSIGN_OR_RETURN(const TensorView* view, Find(module + ".weight", num_experts, in_features));
  ASSIGN_OR_RETURN(std::unique_ptr<LinearWeight> weight, backend_->LoadRouter(*view));
  Finish(*view, view->rows);
  return weight;
}

StatusOr<std::unique_ptr<VectorWeight>> WeightLoader::Vector(const std::string& module,
                                                             uint32_t size,
                                                             const VectorChange& change) {
  const bool again = used_.contains(module + ".weight");
  ASSIGN_OR_RETURN(const TensorView* view, Find(module + ".weight", 1, size));
  ASSIGN_OR_RETURN(std::unique_ptr<VectorWeight> weight, backend_->LoadVector(*view, change));
  Finish(*view, again ? 0 : 1);
  return weight;
}

StatusOr<std::unique_ptr<EmbeddingWeight>> WeightLoader::Embedding(const std::string& module,
                                                                   uint32_t rows, uint32_t cols) {
  ASSIGN_OR_RETURN(const TensorView* view, Find(module + ".weight", rows, cols));
  ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingWeight> weight, backend_->LoadEmbedding(*view));
  if (backend_->EmbeddingBytes(*view) > 0) {  // else it is read row by row when used
    Finish(*view, view->rows);
    whole_embedding_ = view;
  }
  return weight;
}

Status WeightLoader::CheckAllUsed() const {
  for (const TensorView& view : checkpoint_->tensors()) {
    if (used_.find(view.name) == used_.end()) {
      return absl::InvalidArgumentError(StrCat("the model file has a tensor ", view.name, " that ",
                                               checkpoint_->config().architecture,
                                               " does not use"));
    }
  }
  return OkStatus();
}

}  // namespace flotilla
