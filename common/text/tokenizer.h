// Text ↔ token ids, equal to what Hugging Face's tokenizers or SentencePiece make of the same
// model: byte-level BPE (GPT-2, Llama 3, Qwen, DeepSeek, …) and SentencePiece's BPE with byte
// fallback (Llama 2, Phi-3, Gemma), from a GGUF's own vocabulary or from a tokenizer.json
// (tokenizer_json.h).
//
// Threads: const methods from any thread. Errors: Create refuses a vocabulary that cannot write
// plain text (no token for a printable ASCII character), whose merges or ids lead out of it, or
// that asks for what is not supported, and names the field; Encode refuses invalid UTF-8 with the
// offset of the byte, and a text that its pre-tokenizer cannot cut within PCRE2's limits.
//
// A byte or character that has no token vanishes in Encode, or becomes the unknown token where the
// model has one, as in the tokenizers library: SmolLM2 has no token for six control characters (04
// 06 13 14 16 1D) and for the leads F1 and F2 of unassigned planes. Some models (Qwen, GPT-NeoX,
// Command R) normalise text to NFC first.
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
  // With add_special, bos (and eos) are added if the model says so.
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

  // True if Encode puts a space before a text, so that Decode takes it away again.
  virtual bool strips_leading_space() const { return false; }

  // The text of a whole sequence, all of `ids` at once. It is the tokens' bytes, joined; invalid
  // UTF-8 becomes U+FFFD exactly as in Python's bytes.decode(errors="replace"), and a space at the
  // start goes if strips_leading_space().
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;
  // The text of tokens that follow others: the same without the last.
  std::string DecodeRest(std::span<const TokenId> ids, bool skip_special) const;
};

// From a parsed GGUF (metadata_only is enough). The tokenizer copies what it needs.
StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufFile& gguf);

}  // namespace flotilla
