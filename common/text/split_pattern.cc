#include "common/text/split_pattern.h"

#include <string>

namespace flotilla {
namespace {

// What Unicode 15 and 16 added to PCRE2 10.42's classes, as members of a class in [ ].
#define ADDED_UPPER R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"
#define ADDED_LOWER R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"
#define ADDED_MODIFIER \
  R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"
#define ADDED_OTHER                                                                          \
  R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})" \
  R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"   \
  R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"           \
  R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF})" \
  R"(\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"            \
  R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"
#define ADDED_NUMBERS                                                               \
  R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})" \
  R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})" \
  R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"
#define ADDED_MARKS                                                                            \
  R"(\x{897}\x{CF3}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113B8}-\x{113C0})" \
  R"(\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2}\x{113E1}-\x{113E2})"    \
  R"(\x{11F00}-\x{11F01}\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F5A}\x{13440})"    \
  R"(\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})"
#define ADDED_PUNCTUATION                                                       \
  R"(\x{1B4E}-\x{1B4F}\x{1B7F}\x{10D6E}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8})" \
  R"(\x{11B00}-\x{11B09}\x{11BE1}\x{11F43}-\x{11F4F}\x{16D6D}-\x{16D6F}\x{1E5FF})"
#define ADDED_SYMBOLS                                                                        \
  R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{10D8E}-\x{10D8F})"        \
  R"(\x{1CC00}-\x{1CCEF}\x{1CD00}-\x{1CEB3}\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F})" \
  R"(\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89})" \
  R"(\x{1FA8F}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF})"           \
  R"(\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})"

constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Unicode 8's punctuation (two characters have become symbols since), and ASCII's that Unicode
// calls symbols.
constexpr std::string_view kIsPunctuation =
    R"((?:(?![\x{61D}\x{9FD}\x{A76}\x{C77}\x{C84}\x{1B7D}-\x{1B7E}\x{2E43}-\x{2E4F})"
    R"(\x{2E52}-\x{2E5D}\x{10EAD}\x{10F55}-\x{10F59}\x{10F86}-\x{10F89}\x{1144B}-\x{1144F})"
    R"(\x{1145A}-\x{1145B}\x{1145D}\x{11660}-\x{1166C}\x{116B9}\x{1183B}\x{11944}-\x{11946})"
    R"(\x{119E2}\x{11A3F}-\x{11A46}\x{11A9A}-\x{11A9C}\x{11A9E}-\x{11AA2}\x{11C41}-\x{11C45})"
    R"(\x{11C70}-\x{11C71}\x{11EF7}-\x{11EF8}\x{11FFF}\x{12FF1}-\x{12FF2}\x{16E97}-\x{16E9A})"
    R"(\x{16FE2}\x{1E95E}-\x{1E95F}])[\p{P}$+<=>^`|~\x{166D}\x{111C9}]))";

struct CharacterClass {
  std::string_view written;
  std::string_view members;  // inside [ ]
};
constexpr CharacterClass kClasses[] = {
    {R"(\p{L})", R"(\p{L})" ADDED_UPPER ADDED_LOWER ADDED_MODIFIER ADDED_OTHER},
    {R"(\p{Lu})", R"(\p{Lu})" ADDED_UPPER},
    {R"(\p{Ll})", R"(\p{Ll})" ADDED_LOWER},
    {R"(\p{Lm})", R"(\p{Lm})" ADDED_MODIFIER},
    {R"(\p{Lo})", R"(\p{Lo})" ADDED_OTHER},
    {R"(\p{N})", R"(\p{N})" ADDED_NUMBERS},
    {R"(\p{M})", R"(\p{M})" ADDED_MARKS},
    {R"(\p{P})", R"(\p{P})" ADDED_PUNCTUATION},
    {R"(\p{S})", R"(\p{S})" ADDED_SYMBOLS},
    {R"(\p{is_numeric})", R"(\p{N})" ADDED_NUMBERS R"(\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6})"},
    {R"(\s)", kSpaces},
};

// Of the class that `rest` begins with: how it is written for PCRE2. Returns its length, 0: none.
size_t AppendClass(std::string_view rest, bool in_brackets, std::string* out) {
  constexpr std::string_view kPunctuationName = R"(\p{is_punctuation})";
  if (rest.substr(0, kPunctuationName.size()) == kPunctuationName) {
    out->append(kIsPunctuation);
    return kPunctuationName.size();
  }
  if (rest.substr(0, 2) == R"(\S)") {
    out->append("[^").append(kSpaces).append("]");
    return 2;
  }
  for (const CharacterClass& c : kClasses) {
    if (rest.substr(0, c.written.size()) != c.written) continue;
    if (!in_brackets) out->push_back('[');
    out->append(c.members);
    if (!in_brackets) out->push_back(']');
    return c.written.size();
  }
  return 0;
}

}  // namespace

std::string ToPcre2(std::string_view pattern) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size();) {
    size_t length = 1;
    if (pattern[i] == '\\') {
      length = AppendClass(pattern.substr(i), in_brackets, &out);
      if (length > 0) {
        i += length;
        continue;
      }
      length = 2;
    } else if (pattern[i] == '[') {
      in_brackets = true;
    } else if (pattern[i] == ']') {
      in_brackets = false;
    }
    out.append(pattern.substr(i, length));
    i += length;
  }
  return out;
}

}  // namespace flotilla
