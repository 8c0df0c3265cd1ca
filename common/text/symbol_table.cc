#include "common/text/symbol_table.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace flotilla {

std::optional<uint8_t> ParseByteToken(std::string_view written) {
  if (written.size() != 6 || written.substr(0, 3) != "<0x" || written[5] != '>') return {};
  uint32_t value = 0;
  for (char c : written.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'A' && c <= 'F')) return {};
    value = value * 16 + static_cast<uint32_t>(digit ? c - '0' : c - 'A' + 10);
  }
  return static_cast<uint8_t>(value);
}

std::optional<char> SymbolTable::FindUnwritable() const {
  if (unknown_ >= 0) return {};
  // A space is written ▁ in a vocabulary of characters.
  for (char c = kind_ == Kind::kBytes ? ' ' : '!'; c <= '~'; ++c) {
    const bool known =
        of_byte_[static_cast<uint8_t>(c)] >= 0 ||
        (kind_ == Kind::kCharacters && of_character_.contains(static_cast<char32_t>(c)));
    if (!known) return c;
  }
  return {};
}

void SymbolTable::Append(std::string_view piece, std::vector<TokenId>* symbols) const {
  const size_t first = symbols->size();
  symbols->reserve(first + piece.size());
  if (kind_ == Kind::kBytes) {
    for (char c : piece) {
      const TokenId id = of_byte_[static_cast<uint8_t>(c)];
      if (id >= 0) {
        symbols->push_back(id);
      } else {
        AppendUnknown(first, symbols);
      }
    }
    return;
  }
  for (size_t i = 0; i < piece.size();) {
    size_t length = 0;
    const char32_t code_point = CodePointAt(piece, i, &length);
    AppendCharacter(piece.substr(i, length), code_point, first, symbols);
    i += length;
  }
}

void SymbolTable::AppendUnknown(size_t first, std::vector<TokenId>* symbols) const {
  if (unknown_ < 0) return;
  if (fuse_unknown_ && symbols->size() > first && symbols->back() == unknown_) return;
  symbols->push_back(unknown_);
}

void SymbolTable::AppendCharacter(std::string_view character, char32_t code_point, size_t first,
                                  std::vector<TokenId>* symbols) const {
  if (const auto found = of_character_.find(code_point); found != of_character_.end()) {
    symbols->push_back(found->second);
    return;
  }
  const auto token = [&](char c) { return of_byte_[static_cast<uint8_t>(c)]; };
  if (std::all_of(character.begin(), character.end(), [&](char c) { return token(c) >= 0; })) {
    for (char c : character) symbols->push_back(token(c));
  } else {
    AppendUnknown(first, symbols);
  }
}

}  // namespace flotilla
