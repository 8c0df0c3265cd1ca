#include "common/template/chat_template.h"

#include <utility>

#include "common/base/utf8.h"
#include "common/template/ast.h"
#include "common/template/interpreter.h"
#include "common/template/json_input.h"
#include "common/template/parser.h"
#include "common/template/resolver.h"
#include "common/template/runtime.h"

namespace flotilla {
namespace {

using jinja::Dict;
using jinja::Runtime;
using jinja::Value;

constexpr std::string_view kContext = "chat template";

// What apply_chat_template passes itself; `extra` may not.
constexpr std::string_view kReserved[] = {"messages", "tools", "documents",
                                          "add_generation_prompt"};

// Messages may quote the template or its input; whoever reads them wants no megabytes.
constexpr size_t kMaxMessageBytes = 1000;

Status Located(const Status& status, std::string_view where) {
  const std::string_view message(status.message().data(), status.message().size());
  if (message.size() <= kMaxMessageBytes) return Annotate(status, where);
  size_t end = kMaxMessageBytes;
  while ((static_cast<uint8_t>(message[end]) & 0xc0) == 0x80) --end;  // not within a character
  return Status(status.code(), StrCat(where, ": ", message.substr(0, end), "…"));
}

Status SetInput(Runtime& rt, std::string_view name, StatusOr<Value> value, Dict* inputs) {
  if (!value.ok()) return Annotate(value.status(), name);
  ASSIGN_OR_RETURN(Value key, rt.NewStr(name));
  inputs->Set(std::move(key), *std::move(value));
  return OkStatus();
}

StatusOr<Dict> MakeInputs(Runtime& rt, const ChatTemplateInput& input) {
  Dict inputs;
  RETURN_IF_ERROR(SetInput(rt, "messages", jinja::FromJson(rt, input.messages), &inputs));
  RETURN_IF_ERROR(SetInput(rt, "tools", jinja::FromJson(rt, input.tools), &inputs));
  RETURN_IF_ERROR(SetInput(rt, "documents", jinja::FromJson(rt, input.documents), &inputs));
  RETURN_IF_ERROR(
      SetInput(rt, "add_generation_prompt", Value::Bool(input.add_generation_prompt), &inputs));
  if (input.bos_token.has_value()) {
    RETURN_IF_ERROR(SetInput(rt, "bos_token", jinja::FromText(rt, *input.bos_token), &inputs));
  }
  if (input.eos_token.has_value()) {
    RETURN_IF_ERROR(SetInput(rt, "eos_token", jinja::FromText(rt, *input.eos_token), &inputs));
  }
  for (const auto& entry : input.extra) {
    const std::string_view name(entry.key().data(), entry.key().size());
    for (std::string_view reserved : kReserved) {
      if (name == reserved) {
        return absl::InvalidArgumentError(StrCat("'", name, "' can't be given twice"));
      }
    }
    RETURN_IF_ERROR(SetInput(rt, name, jinja::FromJson(rt, entry.value()), &inputs));
  }
  return inputs;
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::MacroDef root;
  ChatTemplateLimits limits;
};

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source,
                                           const ChatTemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return absl::ResourceExhaustedError(
        StrCat("the chat template passed its limit max_source_bytes = ", limits.max_source_bytes));
  }
  if (const auto invalid = FindInvalidUtf8(source)) {
    return absl::InvalidArgumentError(StrCat(kContext, ": invalid UTF-8 at offset ", *invalid));
  }
  auto parsed = std::make_shared<Parsed>();
  parsed->limits = limits;
  StatusOr<jinja::Block> body = jinja::Parser(source, limits).Parse();
  if (!body.ok()) return Located(body.status(), kContext);
  parsed->root.body = *std::move(body);
  const Status resolved = jinja::ResolveNames(&parsed->root);
  if (!resolved.ok()) return Located(resolved, kContext);
  return ChatTemplate(std::move(parsed));
}

StatusOr<std::string> ChatTemplate::Render(const ChatTemplateInput& input) const {
  Runtime rt(parsed_->limits, input.now);
  const StatusOr<Dict> inputs = MakeInputs(rt, input);
  if (!inputs.ok()) return Located(inputs.status(), "chat template's input");
  jinja::Interpreter interpreter(rt, *inputs);
  StatusOr<std::string> text = interpreter.Run(parsed_->root);
  if (!text.ok()) {
    return Located(text.status(), StrCat(kContext, ", line ", interpreter.error_line()));
  }
  return text;
}

}  // namespace flotilla
