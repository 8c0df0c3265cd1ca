// The pre-tokenizers that are known: by the name a GGUF gives (tokenizer.ggml.pre), and by the
// regular expressions and components that a tokenizer.json writes out.
//
// A new one is one row of pre_tokenizer_table.cc. Only expressions of the table are taken, because
// only their time is known to be linear in the text. Threads: pure functions over constants.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "common/text/pre_tokenizer.h"

namespace flotilla {

struct PreTokenizerRow {
  static constexpr size_t kMaxStages = 6;
  std::string_view name;                      // tokenizer.ggml.pre
  std::array<SplitStage, kMaxStages> stages;  // up to the first without a pattern
  // What the model's own tokenizer.json says beside the pre-tokenizer, and a GGUF does not.
  bool nfc = false;            // text is normalised to NFC first
  bool ignore_merges = false;  // a piece that is a token is that token
  bool add_bos = false;        // if the file does not say (tokenizer.ggml.add_bos_token)

  std::span<const SplitStage> used_stages() const;
};

// Null: unknown.
const PreTokenizerRow* FindPreTokenizer(std::string_view name);
// "command-r, dbrx, …": the names that are known.
std::string KnownPreTokenizers();

// The pattern for a regular expression of a tokenizer.json; empty: it is not in the table.
std::string_view FindSplitPattern(std::string_view regex);

// What the tokenizers library's components search for.
inline constexpr std::string_view kGpt2Words =  // ByteLevel with use_regex
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kDigit = R"(\p{is_numeric})";    // Digits, individual_digits
inline constexpr std::string_view kDigits = R"(\p{is_numeric}+)";  // Digits
inline constexpr std::string_view kPunctuation = R"(\p{is_punctuation})";  // Punctuation, Isolated
inline constexpr std::string_view kPunctuations = R"(\p{is_punctuation}++)";  // …, Contiguous
inline constexpr std::string_view kWordsAfterSpace = "[^ ]*+ |[^ ]++";  // Split " ", with previous
inline constexpr std::string_view kMetaspaceWords = "▁[^▁]*+|[^▁]++";   // Metaspace, split
// Digits after ByteLevel: of the characters that stand for bytes, these six are numbers too
// (² ³ ¹ ¼ ½ ¾).
inline constexpr std::string_view kByteLevelDigits = R"([0-9\xB2\xB3\xB9\xBC-\xBE]+)";
inline constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

}  // namespace flotilla
