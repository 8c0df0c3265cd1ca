#include "deploy/launcher/model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "common/base/default_model.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/gguf_shards.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

// "Q4_1", "Q4_K_M", "F16", "IQ3_XS": a quantisation's name at the end of a file's name.
bool IsQuantisationName(const std::string& text) {
  const size_t digit = text.find_first_of("0123456789");
  if (digit == std::string::npos || digit == 0 || text.size() > 8) return false;
  const std::string kind = text.substr(0, digit);
  return kind == "Q" || kind == "IQ" || kind == "F" || kind == "BF" || kind == "q" || kind == "f";
}

}  // namespace

StatusOr<std::string> ResolveModelPath(const std::string& model) {
  std::string path = model;
  if (model == "default") {
    ASSIGN_OR_RETURN(path, DefaultModelPath());
    if (access(path.c_str(), R_OK) != 0)
      return absl::NotFoundError(absl::StrCat(
          "the default model is not at ", path,
          "; './flotilla serve' in the source tree fetches it, or name a .gguf file with --model"));
  }
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found)
    return absl::NotFoundError(absl::StrCat("--model: there is no file or folder '", path, "'"));
  const bool folder = kind == std::filesystem::file_type::directory &&
                      std::filesystem::exists(path + "/config.json", error);
  if (!folder && kind != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model: '", path, "' is neither a .gguf file nor a folder with a config.json"));
  }
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

StatusOr<ModelConfig> InspectModel(const std::string& path) {
  StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenCheckpoint(path);
  if (!checkpoint.ok()) return checkpoint.status();
  return (*checkpoint)->config();
}

std::string ModelNameOfPath(const std::string& path) {
  std::filesystem::path parts(path);
  if (!parts.has_filename()) parts = parts.parent_path();  // "models/a/"
  std::string name = GgufStem(parts.filename().string());
  const size_t cut = name.find_last_of(".-");
  if (cut != std::string::npos && cut > 0 && IsQuantisationName(name.substr(cut + 1)))
    name.resize(cut);
  return name;
}

StatusOr<uint32_t> ResolveTp(const std::string& tp, uint32_t query_heads) {
  const uint32_t most = std::clamp<uint32_t>(query_heads, 1, kMaxRanks);
  uint32_t ranks = 0;
  if (!absl::SimpleAtoi(tp, &ranks) || ranks == 0)
    return absl::InvalidArgumentError(absl::StrCat("--tp: '", tp, "' is not a number of ranks"));
  if (ranks > most)
    return absl::InvalidArgumentError(absl::StrCat("--tp: ", ranks, " ranks, but the model has ",
                                                   query_heads, " query heads; at most ", most));
  return ranks;
}

}  // namespace flotilla
