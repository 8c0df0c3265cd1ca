#include "router/base/model_handle.h"

#include <tuple>
#include <utility>

#include "common/base/sha256.h"
#include "common/text/model_text.h"
#include "common/text/prompt_bytes.h"

namespace flotilla {

StatusOr<TextModel> LoadTextModel(std::string_view bytes, std::string_view sha256) {
  if (Sha256Hex(bytes) != sha256)
    return absl::DataLossError("the tokenizer file does not have the digest the replica named");
  ASSIGN_OR_RETURN(ModelText text, ParseModelText(bytes));
  const size_t max_token_bytes = MaxTokenBytes(*text.tokenizer);
  return TextModel{std::move(text.tokenizer), max_token_bytes, std::move(text.chat_format),
                   std::move(text.sampling)};
}

ModelHandle ModelOf(const v1::GetModelInfoResponse& info, const TextModel& text) {
  ModelHandle model;
  model.name = info.model();
  model.digest = info.model_digest();
  model.fingerprint = info.fingerprint();
  for (const v1::ModelFile& file : info.files()) {
    if (file.name() == kTokenizerFile) model.tokenizer_sha256 = file.sha256();
  }
  model.max_model_len = info.max_model_len();
  model.vocab_size = info.vocab_size();
  model.hidden_size = info.hidden_size();
  if (info.max_grammar_bytes() != 0) model.max_grammar_bytes = info.max_grammar_bytes();
  model.structural_tags = info.structural_tags();
  model.created = info.created();
  model.tokenizer = text.tokenizer;
  model.chat_format = text.chat_format;
  model.sampling = text.sampling;
  model.max_prompt_bytes = MaxPromptBytes(model.max_model_len, text.max_token_bytes);
  return model;
}

std::shared_ptr<const ModelHandle> ModelHandles::Share(ModelHandle model) {
  const auto said = [](const ModelHandle& of) {
    return std::tie(of.name, of.digest, of.fingerprint, of.tokenizer_sha256, of.max_model_len,
                    of.vocab_size, of.hidden_size, of.max_grammar_bytes, of.structural_tags);
  };
  std::erase_if(handles_, [](const auto& handle) { return handle.expired(); });
  for (const auto& handle : handles_) {
    std::shared_ptr<const ModelHandle> known = handle.lock();
    if (known != nullptr && said(*known) == said(model)) return known;
  }
  auto added = std::make_shared<const ModelHandle>(std::move(model));
  handles_.push_back(added);
  return added;
}

}  // namespace flotilla
