// libFuzzer: any bytes as the body of POST /v1/completions and of POST /v1/embeddings. It becomes
// an error that can be written as JSON, or a request that scheduler and workers accept too. And as
// gRPC's request: what the router says of its parameters names a field.
#include "tests/fuzz/checked_by_scheduler.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const auto* const models = new ModelTable(fuzz::OneModel(absl::NotFoundError("none")));
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  fuzz::CheckParsed(ParseCompletion(body, *models));
  fuzz::CheckParsed(ParseEmbeddings(body, *models));
  v1::GenerateRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (const auto error = CheckParams(request, *models->begin()->second)) fuzz::CheckError(*error);
  if (const auto error = FitToContext(10, *models->begin()->second, &request, "prompt"))
    fuzz::CheckError(*error);
  return 0;
}
