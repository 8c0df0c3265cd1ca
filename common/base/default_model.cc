#include "common/base/default_model.h"

#include <cstdlib>

namespace flotilla {
namespace {

constexpr char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

}  // namespace

StatusOr<std::string> DefaultModelPath() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && *xdg != '\0') return absl::StrCat(xdg, "/flotilla/", kDefaultModelFile);
  if (home == nullptr || *home == '\0')
    return absl::NotFoundError(
        "the default model is kept in ~/.cache, but HOME is not set; name a file with --model");
  return absl::StrCat(home, "/.cache/flotilla/", kDefaultModelFile);
}

}  // namespace flotilla
