// Chat templates: a conversation → the text that a model was trained on, as the model's own
// template (`chat_template` in its tokenizer's files, `tokenizer.chat_template` in a GGUF) lays it
// out.
//
// The result equals, byte for byte, what Python's jinja2 makes of it in transformers'
// apply_chat_template: the immutable sandbox with trim_blocks and lstrip_blocks, break, continue,
// {% generation %}, transformers' tojson, raise_exception and strftime_now.
//
// The language is jinja2's, but for
//  - tags: no extends, block, include, import, from, autoescape, and no recursive loops;
//  - filters: abs capitalize center count d default dictsort e escape first float forceescape
//    format indent int items join last length list lower map max min reject rejectattr replace
//    reverse round safe select selectattr sort string sum title tojson trim unique upper;
//  - tests: all of jinja2's; global functions: dict namespace raise_exception range strftime_now;
//  - methods: those of str, list, tuple and dict that change nothing, but for str's casefold,
//    encode, format_map, isidentifier, maketrans, translate; letters and digits beyond ASCII are
//    unknown to isalpha, isdigit and their like;
//  - integers have 64 bits, and those of JSON that need the 64th for their value are shown and
//    compared only; names are ASCII; what Python would print with a memory address (a
//    generator, a method) can't be printed; a string may not hold lone surrogates.
//
// What is left out is an error that says so (kUnimplemented), never another result.
//
// A template sees its inputs and nothing else, and ends within ChatTemplateLimits whatever it does.
//
// Threads: a ChatTemplate is immutable; copies are cheap; Render may run in any number of threads.
// Errors: kInvalidArgument for a template that is wrong, for input that it refuses
// (raise_exception; the message is its own) or can't handle; kUnimplemented; kResourceExhausted for
// limits. Each names the line of the template, and quotes at most a kilobyte. Source: jinja2 3.1,
// transformers 5.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/template/limits.h"

namespace flotilla {

struct ChatTemplateInput {
  boost::json::value messages;   // an array of objects with "role" and "content"
  boost::json::value tools;      // an array of tools' JSON schemas; null: none
  boost::json::value documents;  // an array of objects; null: none
  bool add_generation_prompt = false;
  // Absent: the tokenizer has none, and the name is undefined.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // More variables: other special tokens, a request's chat_template_kwargs such as enable_thinking.
  // They may replace bos_token and eos_token, none of the others.
  boost::json::object extra;
  std::tm now{};  // the local time that strftime_now shows
};

class ChatTemplate {
 public:
  static StatusOr<ChatTemplate> Parse(std::string_view source,
                                      const ChatTemplateLimits& limits = {});
  StatusOr<std::string> Render(const ChatTemplateInput& input) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace flotilla
