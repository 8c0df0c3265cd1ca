// The model "m" with a chat template, whose tokens are bytes.
//
// Threads: any.
#pragma once

#include <memory>

#include "router/base/model_handle.h"
#include "tests/fakes/byte_vocabulary.h"

namespace flotilla {

inline ModelTable TemplateModel(const char* chat_template) {
  auto model = std::make_shared<ModelHandle>();
  model->name = "m";
  model->max_model_len = 1024;
  model->tokenizer = std::make_shared<testing::ByteVocabulary>();
  model->vocab_size = model->tokenizer->vocab_size();
  model->chat_format = ChatFormat::Create(chat_template, {}, {});
  return {{"m", std::move(model)}};
}

}  // namespace flotilla
