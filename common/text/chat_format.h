// How a model wants conversations written: the chat template in its file and the special tokens
// that the template may name.
//
// Source: GGUF's tokenizer.chat_template, with transformers' names for what a template sees.
// Threads: immutable; copies are cheap; Render from any thread. Errors: Create says NotFound if the
// file has no template, InvalidArgument if it is wrong; Render as ChatTemplate (common/template).
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"
#include "common/template/chat_template.h"

namespace flotilla {

class ChatFormat {
 public:
  static StatusOr<ChatFormat> Create(const GgufFile& gguf);
  static StatusOr<ChatFormat> Create(std::string_view source, std::optional<std::string> bos_token,
                                     std::optional<std::string> eos_token);

  // The text of a conversation. The input's bos_token and eos_token are the model's.
  StatusOr<std::string> Render(ChatTemplateInput input) const;
  // The template's text, which tells how the model writes tool calls.
  const std::string& source() const { return *source_; }

 private:
  ChatFormat(ChatTemplate chat_template, std::string_view source,
             std::optional<std::string> bos_token, std::optional<std::string> eos_token)
      : template_(std::move(chat_template)),
        source_(std::make_shared<const std::string>(source)),
        bos_token_(std::move(bos_token)),
        eos_token_(std::move(eos_token)) {}

  ChatTemplate template_;
  std::shared_ptr<const std::string> source_;
  std::optional<std::string> bos_token_;
  std::optional<std::string> eos_token_;
};

}  // namespace flotilla
