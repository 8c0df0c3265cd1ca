// libFuzzer: any bytes as the body of POST /v1/chat/completions, /v1/responses, /v1/messages and
// /v1/messages/count_tokens, with a model whose template uses what a conversation can bring. It
// becomes an error that can be written as JSON, or a request whose prompt scheduler and workers
// accept too.
#include "router/chat_request.h"
#include "router/messages_request.h"
#include "router/responses_request.h"
#include "tests/fuzz/checked_by_scheduler.h"

namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% if tools %}<tool_call>{{ tools | length }}{% endif %}{% for m in messages %}"
    "{{ m.role[0] }}{{ m.name }}{{ m.content }}{{ m.tool_call_id }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if loud %}{{ raise_exception('loud') }}{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}:{% endif %}";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  static const auto* const models = new ModelTable(
      fuzz::OneModel(ChatFormat::Create(kTemplate, /*bos_token=*/"<", /*eos_token=*/">")));
  static const auto* const mute = new ModelTable(fuzz::OneModel(absl::NotFoundError("none")));
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  fuzz::CheckParsed(ParseChat(body, *models));
  fuzz::CheckParsed(ParseResponses(body, *models, {}));
  const auto message = ParseMessages(body, *models, {});
  const auto count = CountTokens(body, *models, {});
  if (const auto* request = std::get_if<CompletionRequest>(&message)) {
    CHECK(std::get<std::string>(count) ==
          StrCat("{\"input_tokens\":", request->prompts[0].ids.size(), "}"));
  }
  fuzz::CheckParsed(message);
  const auto refused = ParseChat(body, *mute);
  CHECK(std::holds_alternative<ApiError>(refused));
  return 0;
}
