// libFuzzer: any source with any input must end within its budgets, without a crash.
//
// The bytes are a template, a zero byte, and the JSON of its variables: an object that may have the
// members messages and tools. Anything else there, or nothing, is a small conversation.
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/template/chat_template.h"

namespace {

constexpr flotilla::ChatTemplateLimits kTight = {
    .max_source_bytes = 1 << 16,
    .max_nesting = 200,
    .max_steps = 20'000,
    .max_output_bytes = 1 << 16,
    .max_value_bytes = 1 << 20,
    .max_depth = 600,
    .max_value_depth = 100,
    .max_range = 1000,
};

boost::json::value Take(boost::json::object* variables, const char* name) {
  const auto found = variables->find(name);
  if (found == variables->end()) return nullptr;
  boost::json::value value = std::move(found->value());
  variables->erase(found);
  return value;
}

constexpr std::string_view kConversation = R"({
  "messages": [{"role": "system", "content": "Be brief."},
               {"role": "user", "content": [{"type": "text", "text": "Grüezi 👋"}]},
               {"role": "assistant", "content": null, "tool_calls": [
                 {"id": "c", "function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]},
               {"role": "tool", "tool_call_id": "c", "content": ""},
               {"role": "user", "content": "<think>\n</think> why?"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})";

flotilla::ChatTemplateInput InputOf(std::string_view text) {
  flotilla::ChatTemplateInput input;
  boost::json::error_code error;
  boost::json::value parsed = boost::json::parse({text.data(), text.size()}, error);
  if (error || !parsed.is_object()) {
    parsed = boost::json::parse({kConversation.data(), kConversation.size()});
  }
  input.messages = Take(&parsed.get_object(), "messages");
  input.tools = Take(&parsed.get_object(), "tools");
  input.extra = std::move(parsed.get_object());
  input.add_generation_prompt = true;
  input.now.tm_mday = 1;
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = bytes.find('\0');
  const auto chat_template = flotilla::ChatTemplate::Parse(bytes.substr(0, end), kTight);
  if (!chat_template.ok()) return 0;
  const std::string_view rest = end == bytes.npos ? std::string_view() : bytes.substr(end + 1);
  const auto text = chat_template->Render(InputOf(rest));
  if (!text.ok()) return 0;
  CHECK(text->size() <= kTight.max_output_bytes);
  CHECK(!flotilla::FindInvalidUtf8(*text).has_value());
  return 0;
}
