// Text ↔ token ids. Byte-level BPE from a GGUF's own vocabulary and merges, with the pre-tokenizer
// that `tokenizer.ggml.pre` names ("smollm": single digits, then GPT-2's pattern, byte level).
//
// Threads: const methods from any thread. Errors: Create refuses a vocabulary that cannot write
// plain text (no token for a printable ASCII byte) or whose merges or ids lead out of it, and names
// the field; Encode refuses invalid UTF-8 with the offset of the byte.
//
// A byte that has no token vanishes in Encode, as in the tokenizers library: SmolLM2 has none for
// six control characters (04 06 13 14 16 1D) and for the leads F1 and F2 of unassigned planes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {

using TokenId = int32_t;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Control tokens written in `text` become their ids if parse_special, user-defined ones always.
  // Adds bos only if the model says so (add_bos_token) and add_special is set.
  struct EncodeOptions {
    bool parse_special = true;
    bool add_special = true;
  };
  virtual StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                                EncodeOptions options) const = 0;
  StatusOr<std::vector<TokenId>> Encode(std::string_view text) const {
    return Encode(text, EncodeOptions{});
  }

  // The raw bytes of one token (may be part of a UTF-8 character). Empty for ids out of range.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;  // control / unknown: hidden by skip_special
  virtual uint32_t vocab_size() const = 0;
  // Any of these ends a generation: the file's eos, eot and eom ids, and control tokens that are
  // the end of a text by their well-known names ("<|endoftext|>", "<|im_end|>", …). Sorted.
  virtual std::vector<TokenId> eos_ids() const = 0;
  virtual TokenId bos_id() const = 0;  // -1: none

  // All of `ids` at once; invalid UTF-8 becomes U+FFFD exactly as Python's
  // decode(errors="replace").
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;
};

// From a parsed GGUF (metadata_only is enough). The tokenizer copies what it needs.
StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufFile& gguf);

}  // namespace flotilla
