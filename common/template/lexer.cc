#include "common/template/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/template/numbers.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

struct Operator {
  std::string_view text;
  TokenType type;
};
// Two characters before one.
constexpr std::array kOperators = {
    Operator{"//", TokenType::kFloorDiv},   Operator{"**", TokenType::kPow},
    Operator{"==", TokenType::kEq},         Operator{"!=", TokenType::kNe},
    Operator{">=", TokenType::kGtEq},       Operator{"<=", TokenType::kLtEq},
    Operator{"+", TokenType::kAdd},         Operator{"-", TokenType::kSub},
    Operator{"/", TokenType::kDiv},         Operator{"*", TokenType::kMul},
    Operator{"%", TokenType::kMod},         Operator{"~", TokenType::kTilde},
    Operator{">", TokenType::kGt},          Operator{"<", TokenType::kLt},
    Operator{"=", TokenType::kAssign},      Operator{".", TokenType::kDot},
    Operator{":", TokenType::kColon},       Operator{"|", TokenType::kPipe},
    Operator{",", TokenType::kComma},       Operator{";", TokenType::kSemicolon},
    Operator{"(", TokenType::kLeftParen},   Operator{")", TokenType::kRightParen},
    Operator{"[", TokenType::kLeftBracket}, Operator{"]", TokenType::kRightBracket},
    Operator{"{", TokenType::kLeftBrace},   Operator{"}", TokenType::kRightBrace},
};

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsSign(char c) { return c == '-' || c == '+'; }

// "\r\n" and "\r" become "\n"; one newline at the end goes.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out.push_back('\n');
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

struct Lexer::Tag {
  size_t pos;       // of its "{"; the source's end if there is none
  char kind = 0;    // '%', '{', '#', or 'r' for {% raw %}
  char sign = 0;    // '-', '+' or 0
  size_t body = 0;  // behind the mark and its sign
};

Lexer::Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {}

StatusOr<Token> Lexer::Next() {
  while (ready_.empty()) {
    if (pos_ == source_.size()) {
      Emit(TokenType::kEof, "");
      break;
    }
    RETURN_IF_ERROR(mode_ == Mode::kRoot ? ScanRoot() : ScanInTag());
  }
  Token token = std::move(ready_.front());
  ready_.pop_front();
  return token;
}

Lexer::Tag Lexer::FindTag() const {
  for (size_t i = pos_; (i = source_.find('{', i)) != std::string::npos; ++i) {
    if (i + 1 == source_.size()) break;
    Tag tag{.pos = i, .kind = source_[i + 1]};
    if (tag.kind != '%' && tag.kind != '{' && tag.kind != '#') continue;
    tag.body = i + 2;
    if (tag.body < source_.size() && IsSign(source_[tag.body])) tag.sign = source_[tag.body++];
    if (tag.kind == '%' && MatchRawBegin(tag.body, &tag.body)) tag.kind = 'r';
    return tag;
  }
  return Tag{.pos = source_.size()};
}

// \s*raw\s*(?:\-%}\s*|%})
bool Lexer::MatchRawBegin(size_t pos, size_t* end) const {
  pos = SkipSpace(pos);
  if (source_.compare(pos, 3, "raw") != 0) return false;
  pos = SkipSpace(pos + 3);
  if (source_.compare(pos, 3, "-%}") == 0) {
    *end = SkipSpace(pos + 3);
    return true;
  }
  if (source_.compare(pos, 2, "%}") != 0) return false;
  *end = pos + 2;
  return true;
}

// \s*endraw\s*(?:\+%}|\-%}\s*|%}\n?) behind a "{%"
bool Lexer::MatchRawEnd(size_t pos, char* sign, size_t* end) const {
  *sign = 0;
  if (pos < source_.size() && IsSign(source_[pos])) *sign = source_[pos++];
  pos = SkipSpace(pos);
  if (source_.compare(pos, 6, "endraw") != 0) return false;
  pos = SkipSpace(pos + 6);
  const char end_sign = pos < source_.size() && IsSign(source_[pos]) ? source_[pos++] : 0;
  if (source_.compare(pos, 2, "%}") != 0) return false;
  *end = SkipTagEnd(pos, 2, end_sign, /*trims_newline=*/true);
  return true;
}

Status Lexer::ScanRoot() {
  const Tag tag = FindTag();
  if (tag.pos == source_.size()) {
    Emit(TokenType::kData, source_.substr(pos_));
    MoveTo(source_.size());
    return OkStatus();
  }
  EmitText(tag.pos, tag.sign, /*lstrip=*/tag.kind != '{');
  MoveTo(tag.body);
  line_starting_ = source_[pos_ - 1] == '\n';
  switch (tag.kind) {
    case '#':
      return SkipComment();
    case 'r':
      return ScanRaw();
    case '{':
      mode_ = Mode::kVariable;
      Emit(TokenType::kVariableBegin, "{{");
      return OkStatus();
    default:
      mode_ = Mode::kBlock;
      Emit(TokenType::kBlockBegin, "{%");
      return OkStatus();
  }
}

void Lexer::EmitText(size_t tag, char sign, bool lstrip) {
  std::string_view text = std::string_view(source_).substr(pos_, tag - pos_);
  if (sign == '-') {
    text = StripSpace(text, Side::kRight);
  } else if (sign != '+' && lstrip) {
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line > 0 || line_starting_) && StripSpace(text.substr(line)).empty()) {
      text = text.substr(0, line);
    }
  }
  if (!text.empty()) Emit(TokenType::kData, std::string(text));
}

Status Lexer::SkipComment() {
  const size_t end = source_.find("#}", pos_);
  if (end == std::string::npos) return UnlessAtEnd("Missing end of comment tag");
  const char sign = end > pos_ && IsSign(source_[end - 1]) ? source_[end - 1] : 0;
  MoveTo(SkipTagEnd(end, 2, sign, /*trims_newline=*/true));
  line_starting_ = source_[pos_ - 1] == '\n';
  return OkStatus();
}

Status Lexer::ScanRaw() {
  char sign = 0;
  size_t end = 0;
  size_t tag = source_.find("{%", pos_);
  while (tag != std::string::npos && !MatchRawEnd(tag + 2, &sign, &end)) {
    tag = source_.find("{%", tag + 1);
  }
  if (tag == std::string::npos) return UnlessAtEnd("Missing end of raw directive");
  EmitText(tag, sign, /*lstrip=*/true);
  MoveTo(end);
  line_starting_ = source_[pos_ - 1] == '\n';
  return OkStatus();
}

// \+%}|\-%}\s*|%}\n? in a block; \-}}\s*|}} in a variable. Not within brackets.
bool Lexer::MatchTagEnd(size_t* end) const {
  if (!open_brackets_.empty()) return false;
  const bool block = mode_ == Mode::kBlock;
  char sign = source_[pos_];
  if (sign != '-' && !(block && sign == '+')) sign = 0;
  const size_t mark = pos_ + (sign != 0 ? 1 : 0);
  if (source_.compare(mark, 2, block ? "%}" : "}}") != 0) return false;
  *end = SkipTagEnd(mark, 2, sign, /*trims_newline=*/block);
  return true;
}

Status Lexer::ScanInTag() {
  size_t end = 0;
  if (MatchTagEnd(&end)) {
    Emit(mode_ == Mode::kBlock ? TokenType::kBlockEnd : TokenType::kVariableEnd, "end of tag");
    MoveTo(end);
    line_starting_ = source_[pos_ - 1] == '\n';
    mode_ = Mode::kRoot;
    return OkStatus();
  }
  end = SkipSpace(pos_);
  if (end != pos_) {
    MoveTo(end);
    return OkStatus();
  }
  const char c = source_[pos_];
  if (absl::ascii_isdigit(c)) return ScanNumber();
  if (IsNameStart(c)) {
    for (end = pos_; end < source_.size() &&
                     (IsNameStart(source_[end]) || absl::ascii_isdigit(source_[end]));) {
      ++end;
    }
    Emit(TokenType::kName, source_.substr(pos_, end - pos_));
    MoveTo(end);
    return OkStatus();
  }
  return c == '\'' || c == '"' ? ScanString() : ScanOperator();
}

Status Lexer::ScanNumber() {
  const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
  const NumberLiteral number =
      ReadNumberLiteral(std::string_view(source_).substr(pos_), !after_dot);
  if (number.out_of_range) return Error("an integer beyond 64 bits is not supported");
  Emit(number.is_float ? TokenType::kFloat : TokenType::kInteger,
       source_.substr(pos_, number.length));
  ready_.back().integer = number.integer;
  ready_.back().real = number.real;
  MoveTo(pos_ + number.length);
  return OkStatus();
}

Status Lexer::ScanString() {
  const char quote = source_[pos_];
  size_t end = pos_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) return Error("a string without its closing quote");
  ASSIGN_OR_RETURN(
      std::string value,
      UnescapeLiteral(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1), line_));
  Emit(TokenType::kString, std::move(value));
  MoveTo(end + 1);
  return OkStatus();
}

Status Lexer::ScanOperator() {
  for (const Operator& op : kOperators) {
    if (source_.compare(pos_, op.text.size(), op.text) != 0) continue;
    if (op.text.size() == 1) RETURN_IF_ERROR(Balance(op.text[0]));
    Emit(op.type, std::string(op.text));
    MoveTo(pos_ + op.text.size());
    return OkStatus();
  }
  size_t end = pos_;
  NextChar(source_, &end);
  return Error(StrCat("unexpected character '", source_.substr(pos_, end - pos_), "'"));
}

Status Lexer::Balance(char c) {
  if (c == '(') open_brackets_.push_back(')');
  if (c == '[') open_brackets_.push_back(']');
  if (c == '{') open_brackets_.push_back('}');
  if (c != ')' && c != ']' && c != '}') return OkStatus();
  if (open_brackets_.empty()) return Error(StrCat("unexpected '", std::string(1, c), "'"));
  if (open_brackets_.back() != c) {
    return Error(StrCat("unexpected '", std::string(1, c), "', expected '",
                        std::string(1, open_brackets_.back()), "'"));
  }
  open_brackets_.pop_back();
  return OkStatus();
}

size_t Lexer::SkipSpace(size_t pos) const {
  while (pos < source_.size()) {
    size_t next = pos;
    if (!IsSpace(NextChar(source_, &next))) break;
    pos = next;
  }
  return pos;
}

// The position behind an end mark of `length` bytes and the white space that goes with it.
size_t Lexer::SkipTagEnd(size_t pos, size_t length, char sign, bool trims_newline) const {
  pos += length;
  if (sign == '-') return SkipSpace(pos);
  if (sign == 0 && trims_newline && pos < source_.size() && source_[pos] == '\n') return pos + 1;
  return pos;
}

void Lexer::Emit(TokenType type, std::string text) {
  Token token;
  token.type = type;
  token.line = line_;
  token.text = std::move(text);
  ready_.push_back(std::move(token));
}

void Lexer::MoveTo(size_t pos) {
  line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                       source_.begin() + static_cast<std::ptrdiff_t>(pos), '\n'));
  pos_ = pos;
}

// jinja2 does not miss the end of a comment or raw block of which nothing follows.
Status Lexer::UnlessAtEnd(std::string_view message) const {
  return pos_ == source_.size() ? OkStatus() : Error(message);
}

Status Lexer::Error(std::string_view message) const {
  return absl::InvalidArgumentError(StrCat("line ", line_, ": ", message));
}

}  // namespace flotilla::jinja
