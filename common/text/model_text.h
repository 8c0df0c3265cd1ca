// The text side of a model: tokenizer, chat template and defaults of sampling, from what --model
// names, or from the bytes by which a replica passes them on to routers.
//
// Of a .gguf file these bytes are its head; of a folder a bundle of its tokenizer.json,
// tokenizer_config.json (special tokens, chat template), chat_template.jinja and
// generation_config.json (eos ids, sampling). Either may stand behind a chat template that is used
// instead of the model's.
//
// Threads: pure but for the files. Ownership: the result owns all it needs. Errors: those of
// Tokenizer, naming the file; a bad or missing chat template is chat_format's error alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/text/chat_format.h"
#include "common/text/sampling_defaults.h"
#include "common/text/tokenizer.h"

namespace flotilla {

struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  StatusOr<ChatFormat> chat_format = absl::NotFoundError("the model has no chat template");
  SamplingDefaults sampling;
};

StatusOr<ModelText> ParseModelText(std::string_view bytes);

// path: a .gguf file or a model folder. *bytes (may be null) gets what ParseModelText takes.
StatusOr<ModelText> OpenModelText(const std::string& path, std::string* bytes);

// Conversations are written by the template in this file instead, with the model's special tokens;
// so they are by whoever parses *bytes. Errors, naming the file: NotFound, InvalidArgument.
Status UseChatTemplate(const std::string& path, ModelText* text, std::string* bytes);

}  // namespace flotilla
