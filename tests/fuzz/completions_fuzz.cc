// libFuzzer: any bytes as the body of POST /v1/completions. It becomes an error that can be written
// as JSON, or a request that scheduler and workers accept too.
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "router/completions_request.h"
#include "router/generate_check.h"
#include "router/json_reader.h"
#include "tests/fakes/byte_vocabulary.h"
#include "tests/fuzz/checked_by_worker.h"

namespace flotilla {
namespace {

void CheckError(const ApiError& error) {
  const int status = HttpStatus(error);
  CHECK(status == 400 || status == 404 || status == 501);
  boost::json::value parsed;
  CHECK(!ParseJson(ErrorJson(error), &parsed).has_value());
  CHECK(!parsed.as_object().at("error").as_object().at("message").as_string().empty());
}

// As CompletionHandler submits it, as the scheduler receives it.
void CheckAccepted(const CompletionRequest& request, const RequestLimits& limits) {
  CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPromptsPerRequest);
  for (const CompletionPrompt& prompt : request.prompts) {
    v1::GenerateRequest sent = request.params;
    sent.mutable_token_ids()->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    SetSeed(/*random=*/7, &sent);
    v1::GenerateRequest received;
    CHECK(received.ParseFromString(sent.SerializeAsString()));
    const auto checked = CheckRequest(received, {}, limits, nullptr);
    CHECK_OK(checked.status());
    fuzz::CheckByWorker(*checked, limits);
  }
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const auto* const model = [] {
    auto* made = new ModelHandle;
    made->name = "m";
    made->max_model_len = fuzz::kContext;
    made->tokenizer = std::make_shared<testing::ByteVocabulary>();
    made->vocab_size = made->tokenizer->vocab_size();
    return made;
  }();
  static const auto* const models = new ModelTable{
      {model->name, std::shared_ptr<const ModelHandle>(model, [](const ModelHandle*) {})}};
  const RequestLimits limits = {.model_name = model->name,
                                .vocab_size = model->vocab_size,
                                .context_length = model->max_model_len};
  const auto parsed = ParseCompletion({reinterpret_cast<const char*>(data), size}, *models);
  if (const auto* error = std::get_if<ApiError>(&parsed))
    CheckError(*error);
  else
    CheckAccepted(std::get<CompletionRequest>(parsed), limits);
  return 0;
}
