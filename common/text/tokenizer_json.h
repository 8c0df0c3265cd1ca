// The tokenizer of a Hugging Face model folder: its tokenizer.json.
//
// Takes models of type BPE, byte level (ByteLevel) or of characters with byte fallback
// (SentencePiece's, as transformers converts it): normalizers NFC, Prepend, Replace; pre-tokenizers
// ByteLevel, Digits, Metaspace, Punctuation, Split; decoders ByteLevel, ByteFallback, Fuse,
// Replace, Strip; post-processors ByteLevel, TemplateProcessing; and Sequences of these. A Split's
// regular expression must be one of pre_tokenizer_table.cc. truncation and padding are ignored, as
// transformers ignores them unless asked.
//
// The file has no roles: bos is the first token that add_special puts before a text, eos are those
// that the caller names and the control tokens with well-known names; a caller without ids may
// give the text of a control token. The last of equal keys counts. What would let a small file take
// much memory or time is bounded: ids (twice the number of tokens), steps and growth of the
// normalizer, stages of the pre-tokenizer, ids of the template.
//
// Threads: pure function. Memory: some ten times the file while it is read. Errors: InvalidArgument
// naming the field and, for a component that is not supported, what it is and what is known.
// Source: tokenizers 0.23 (the Rust crate's deserialisation and components).
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

namespace flotilla {

// The tokenizer copies what it needs of `json`.
StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizerFromJson(std::string_view json,
                                                             std::span<const TokenId> eos_ids = {},
                                                             std::string_view eos_token = {});

}  // namespace flotilla
