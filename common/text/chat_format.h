// How a model wants conversations written: the chat template in its file, another one for those
// with tools if it has one, and the special tokens that the templates may name.
//
// Source: GGUF's tokenizer.chat_template and tokenizer.chat_template.tool_use, with transformers'
// names for what a template sees.
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
                                     std::optional<std::string> eos_token,
                                     std::optional<std::string_view> tool_use_source = {});

  // Another template, of the same model.
  StatusOr<ChatFormat> WithTemplate(std::string_view source) const {
    return Create(source, bos_token_, eos_token_);
  }
  // The text of a conversation. The input's bos_token and eos_token are the model's.
  StatusOr<std::string> Render(ChatTemplateInput input) const;
  // The text of the template for tools, which tells how the model writes their calls.
  const std::string& tool_use_source() const { return *tool_use_source_; }
  // Whether the template asks `message.content is none`, which it is in OpenAI's messages with
  // calls.
  bool AsksForNoContent(bool with_tools) const {
    return with_tools ? tool_use_asks_for_no_content_ : plain_asks_for_no_content_;
  }

 private:
  ChatFormat(ChatTemplate plain, ChatTemplate tool_use, std::string_view source,
             std::string_view tool_use_source, std::optional<std::string> bos_token,
             std::optional<std::string> eos_token);

  ChatTemplate plain_;
  ChatTemplate tool_use_;  // plain_ again if the model has only one
  std::shared_ptr<const std::string> tool_use_source_;
  bool plain_asks_for_no_content_;
  bool tool_use_asks_for_no_content_;
  std::optional<std::string> bos_token_;
  std::optional<std::string> eos_token_;
};

}  // namespace flotilla
