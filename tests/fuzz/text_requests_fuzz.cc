// libFuzzer: any bytes as the body of POST /tokenize, /detokenize and /apply-template. It becomes
// an error or an answer, both JSON; and a prompt's tokens are its text again.
#include "router/api/text_requests.h"

#include <boost/json/serialize.hpp>

#include "tests/fuzz/checked_by_scheduler.h"

namespace flotilla {
namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content }}{% endfor %}{% if loud %}{{ raise_exception('loud') }}{% endif %}";

boost::json::value Parsed(std::string_view text) {
  boost::json::value parsed;
  CHECK(!ParseJson(text, &parsed).has_value());
  return parsed;
}

// The answer as JSON; nothing for an error.
boost::json::value CheckAnswer(const TextAnswer& answer) {
  if (const auto* text = std::get_if<std::string>(&answer)) return Parsed(*text);
  fuzz::CheckError(std::get<ApiError>(answer));
  return nullptr;
}

void CheckTokens(const boost::json::object& tokenized, std::string_view body,
                 const ModelTable& models) {
  const auto& tokens = tokenized.at("tokens").as_array();
  CHECK(tokens.size() == tokenized.at("count").to_number<size_t>());
  if (const auto* texts = tokenized.at("token_strs").if_array())
    CHECK(texts->size() == tokens.size());
  const boost::json::value request = Parsed(body);
  const auto* prompt = request.as_object().if_contains("prompt");
  if (request.as_object().contains("messages") || prompt == nullptr) return;
  // More tokens than the context has may be counted, but not be given back.
  if (tokens.size() > fuzz::kContext) return;
  const boost::json::object back{{"model", "m"}, {"tokens", tokens}};
  const auto text = CheckAnswer(Detokenize(boost::json::serialize(back), models, {}));
  CHECK(text.as_object().at("prompt").as_string() == prompt->as_string());
}

void CheckText(std::string_view body, const ModelHandle& model) {
  const boost::json::value request = Parsed(body);
  for (const boost::json::value& token : request.as_object().at("tokens").as_array()) {
    const auto id = token.to_number<int64_t>();
    CHECK(id >= 0 && id < model.vocab_size);
  }
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const auto* const models =
      new ModelTable(fuzz::OneModel(ChatFormat::Create(kTemplate, /*bos_token=*/"<", "")));
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto tokenized = CheckAnswer(Tokenize(body, *models, {}));
  if (!tokenized.is_null()) CheckTokens(tokenized.as_object(), body, *models);
  if (!CheckAnswer(Detokenize(body, *models, {})).is_null())
    CheckText(body, *models->begin()->second);
  CheckAnswer(ApplyTemplate(body, *models, {}));
  return 0;
}
