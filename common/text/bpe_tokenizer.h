// Byte-level BPE (tokenizer.ggml.model "gpt2"): Tokenizer over PreTokenizer and BpeMerger.
//
// Threads, errors: see tokenizer.h.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"
#include "common/text/tokenizer.h"

namespace flotilla {

StatusOr<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& gguf);

}  // namespace flotilla
