// Splits a template's source into tokens, on demand.
//
// As jinja2 does with trim_blocks and lstrip_blocks: the newline behind a block or comment goes, so
// does the white space between the start of a line and a block or comment; "-" at a tag's edge
// strips all white space there, "+" keeps it; one newline at the source's end goes. Comments and
// the marks of {% raw %} yield no token.
//
// Threads: one. Errors: kInvalidArgument with the line. Time is linear in the source.
// Source: jinja2 3.1's lexer.py, whose regular expressions this follows branch by branch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla::jinja {

enum class TokenType : uint8_t {
  kEof,
  kData,  // text between tags; only tokens of this type and kEof stand outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kTilde,
  kEq,
  kNe,
  kGt,
  kGtEq,
  kLt,
  kLtEq,
  kAssign,
  kDot,
  kColon,
  kPipe,
  kComma,
  kSemicolon,
  kLeftParen,
  kRightParen,
  kLeftBracket,
  kRightBracket,
  kLeftBrace,
  kRightBrace,
};

struct Token {
  TokenType type = TokenType::kEof;
  int line = 1;
  std::string text;  // of a name, a string (its value), data; how others are spelled
  int64_t integer = 0;
  double real = 0;

  bool Is(TokenType t) const { return type == t; }
  bool IsName(std::string_view name) const { return type == TokenType::kName && text == name; }
};

class Lexer {
 public:
  // `source` must be valid UTF-8.
  explicit Lexer(std::string_view source);

  // The next token; kEof again and again at the end.
  StatusOr<Token> Next();

 private:
  enum class Mode : uint8_t { kRoot, kBlock, kVariable };
  struct Tag;  // what begins at a "{"

  Status ScanRoot();
  Status ScanInTag();
  Tag FindTag() const;
  bool MatchRawBegin(size_t pos, size_t* end) const;
  bool MatchRawEnd(size_t pos, char* sign, size_t* end) const;
  bool MatchTagEnd(size_t* end) const;
  Status ScanRaw();
  Status SkipComment();
  Status ScanNumber();
  Status ScanString();
  Status ScanOperator();
  Status Balance(char c);
  // The text from pos_ to `tag`, stripped as the tag's sign says.
  void EmitText(size_t tag, char sign, bool lstrip);
  size_t SkipSpace(size_t pos) const;
  size_t SkipTagEnd(size_t pos, size_t length, char sign, bool trims_newline) const;
  void Emit(TokenType type, std::string text);
  void MoveTo(size_t pos);
  Status UnlessAtEnd(std::string_view message) const;
  Status Error(std::string_view message) const;

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  Mode mode_ = Mode::kRoot;
  bool line_starting_ = true;  // pos_ is the start of a line
  std::string open_brackets_;  // those that wait for their other half, innermost last
  std::deque<Token> ready_;
};

// The value of a string literal without its quotes; `line` for errors.
StatusOr<std::string> UnescapeLiteral(std::string_view body, int line);

}  // namespace flotilla::jinja
