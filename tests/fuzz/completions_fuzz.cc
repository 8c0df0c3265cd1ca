// libFuzzer: any bytes as the body of POST /v1/completions and of POST /v1/embeddings. It becomes
// an error that can be written as JSON, or a request that scheduler and workers accept too.
#include "tests/fuzz/checked_by_scheduler.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const auto* const models = new ModelTable(fuzz::OneModel(absl::NotFoundError("none")));
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  fuzz::CheckParsed(ParseCompletion(body, *models));
  fuzz::CheckParsed(ParseEmbeddings(body, *models));
  return 0;
}
