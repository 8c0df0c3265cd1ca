// What a piece of text is before the first merge: one token for each byte (GPT-2's byte level), or
// one for each character, with the tokens of its bytes (<0x41>) for a character that has none.
//
// What has no token at all becomes the unknown token, or vanishes if there is none. Threads: const
// after the last change. Source: the tokenizers library's BPE::merge_word.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/text/tokenizer.h"

namespace flotilla {

// "<0x41>" → 0x41: how SentencePiece writes the token of a byte.
std::optional<uint8_t> ParseByteToken(std::string_view written);

class SymbolTable {
 public:
  enum class Kind { kBytes, kCharacters };
  explicit SymbolTable(Kind kind) : kind_(kind) { of_byte_.fill(-1); }

  Kind kind() const { return kind_; }
  void SetByte(uint8_t byte, TokenId id) { of_byte_[byte] = id; }
  TokenId byte(uint8_t byte) const { return of_byte_[byte]; }
  void SetCharacter(char32_t character, TokenId id) { of_character_[character] = id; }
  // fuse: of several in a row one remains.
  void SetUnknown(TokenId id, bool fuse) {
    unknown_ = id;
    fuse_unknown_ = fuse;
  }

  // The first printable ASCII character that would vanish; none: plain text can be written.
  std::optional<char> FindUnwritable() const;

  // Appends the symbols of `piece` (whole characters, or any bytes for kBytes).
  void Append(std::string_view piece, std::vector<TokenId>* symbols) const;

 private:
  void AppendUnknown(size_t first, std::vector<TokenId>* symbols) const;
  void AppendCharacter(std::string_view character, char32_t code_point, size_t first,
                       std::vector<TokenId>* symbols) const;

  Kind kind_;
  std::array<TokenId, 256> of_byte_;  // −1: none
  absl::flat_hash_map<char32_t, TokenId> of_character_;
  TokenId unknown_ = -1;
  bool fuse_unknown_ = false;
};

}  // namespace flotilla
