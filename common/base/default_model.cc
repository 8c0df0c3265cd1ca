#include "common/base/default_model.h"

#include <cstdlib>

namespace flotilla {
namespace {

constexpr char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

}  // namespace

StatusOr<std::string> UserCacheDir() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && *xdg != '\0') return absl::StrCat(xdg, "/flotilla");
  if (home == nullptr || *home == '\0') {
    return absl::NotFoundError("neither XDG_CACHE_HOME nor HOME is set");
  }
  return absl::StrCat(home, "/.cache/flotilla");
}

StatusOr<std::string> DefaultModelPath() {
  const StatusOr<std::string> cache = UserCacheDir();
  if (!cache.ok()) {
    return absl::NotFoundError(
        "the default model is kept in ~/.cache, but HOME is not set; name a file with --model");
  }
  return absl::StrCat(*cache, "/", kDefaultModelFile);
}

}  // namespace flotilla
