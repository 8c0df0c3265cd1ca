// Methods of str that split, join and classify.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "common/template/builtin.h"
#include "common/template/iterate.h"
#include "common/template/operators.h"
#include "common/template/search.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

// What a text is cut into: each piece is paid for before the next one is looked for.
class PieceList {
 public:
  explicit PieceList(const Call& call) : call_(call) {}

  Status Add(std::string_view text) {
    RETURN_IF_ERROR(call_.rt.Step());
    ASSIGN_OR_RETURN(Value piece, call_.rt.NewStr(text, call_.self.is_markup()));
    items_.push_back(std::move(piece));
    return OkStatus();
  }
  size_t size() const { return items_.size(); }
  void Reverse() { std::reverse(items_.begin(), items_.end()); }
  StatusOr<Value> TakeList() { return call_.rt.NewList(std::move(items_)); }
  StatusOr<Value> TakeTuple() { return call_.rt.NewTuple(std::move(items_)); }

 private:
  const Call& call_;
  std::vector<Value> items_;
};

// Words between white space, at most `most` cuts; the rest keeps its inner and trailing spaces.
Status SplitSpace(std::string_view text, size_t most, PieceList* out) {
  text = StripSpace(text, Side::kLeft);
  while (!text.empty()) {
    if (out->size() == most) return out->Add(text);
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (IsSpace(NextChar(text, &next))) break;
      end = next;
    }
    RETURN_IF_ERROR(out->Add(text.substr(0, end)));
    text = StripSpace(text.substr(end), Side::kLeft);
  }
  return OkStatus();
}

// From the right: the last word is the first of *out.
Status RSplitSpace(std::string_view text, size_t most, PieceList* out) {
  text = StripSpace(text, Side::kRight);
  while (!text.empty()) {
    if (out->size() == most) return out->Add(text);
    size_t begin = text.size();
    while (begin > 0) {
      size_t before = begin;
      if (IsSpace(PreviousChar(text, &before))) break;
      begin = before;
    }
    RETURN_IF_ERROR(out->Add(text.substr(begin)));
    text = StripSpace(text.substr(0, begin), Side::kRight);
  }
  return OkStatus();
}

Status SplitAt(std::string_view text, std::string_view separator, size_t most, PieceList* out) {
  while (out->size() < most) {
    const size_t found = FindText(text, separator);
    if (found == std::string_view::npos) break;
    RETURN_IF_ERROR(out->Add(text.substr(0, found)));
    text.remove_prefix(found + separator.size());
  }
  return out->Add(text);
}

Status RSplitAt(std::string_view text, std::string_view separator, size_t most, PieceList* out) {
  while (out->size() < most) {
    const size_t found = RFindText(text, separator);
    if (found == std::string_view::npos) break;
    RETURN_IF_ERROR(out->Add(text.substr(found + separator.size())));
    text = text.substr(0, found);
  }
  return out->Add(text);
}

template <bool kFromRight>
StatusOr<Value> Split(const Call& call) {
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  ASSIGN_OR_RETURN(const int64_t maxsplit, IntArg(call, 1, -1));
  const size_t most = maxsplit < 0 ? SIZE_MAX : static_cast<size_t>(maxsplit);
  PieceList pieces(call);
  if (!call.given(0) || call.arg(0).is_none()) {
    RETURN_IF_ERROR((kFromRight ? RSplitSpace : SplitSpace)(text, most, &pieces));
  } else {
    ASSIGN_OR_RETURN(const std::string_view separator, TextArg(call, 0));
    if (separator.empty()) return TypeError("empty separator");
    RETURN_IF_ERROR((kFromRight ? RSplitAt : SplitAt)(text, separator, most, &pieces));
  }
  if (kFromRight) pieces.Reverse();
  return pieces.TakeList();
}

StatusOr<Value> SplitLinesMethod(const Call& call) {
  const bool keep_ends = call.given(0) && call.arg(0).Truthy();
  RETURN_IF_ERROR(call.rt.StepBytes(call.self.text().size()));
  PieceList lines(call);
  for (std::string_view rest = call.self.text(); !rest.empty();)
    RETURN_IF_ERROR(lines.Add(TakeLine(&rest, keep_ends)));
  return lines.TakeList();
}

template <bool kFromRight>
StatusOr<Value> Partition(const Call& call) {
  ASSIGN_OR_RETURN(const std::string_view separator, TextArg(call, 0));
  if (separator.empty()) return TypeError("empty separator");
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  const size_t found = kFromRight ? RFindText(text, separator) : FindText(text, separator);
  std::array<std::string_view, 3> parts = {text, "", ""};
  if (kFromRight) parts = {"", "", text};
  if (found != std::string_view::npos)
    parts = {text.substr(0, found), separator, text.substr(found + separator.size())};
  PieceList pieces(call);
  for (const std::string_view part : parts) RETURN_IF_ERROR(pieces.Add(part));
  return pieces.TakeTuple();
}

StatusOr<Value> Join(const Call& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(call.rt, call.arg(0)));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (!item.is_str() && !call.self.is_markup()) {
      return TypeError(
          StrCat("sequence item ", i, ": expected str instance, ", item.TypeName(), " found"));
    }
    if (call.self.is_markup()) {
      ASSIGN_OR_RETURN(item, EscapeHtml(call.rt, item));
    }
    if (i > 0) RETURN_IF_ERROR(call.rt.Append(call.self.text(), &out));
    RETURN_IF_ERROR(AppendStr(call.rt, item, &out));
  }
  return call.rt.NewStr(std::move(out), call.self.is_markup());
}

// Whether there are characters and `is` holds for each.
template <typename Is>
StatusOr<Value> AllChars(const Call& call, Is is) {
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  bool all = !text.empty();
  for (size_t i = 0; i < text.size() && all;) all = is(NextChar(text, &i));
  return Value::Bool(all);
}

bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Which characters beyond ASCII are letters and digits is not known here.
template <typename Is>
StatusOr<Value> AllAsciiChars(const Call& call, Is is) {
  if (call.self.str().num_chars != call.self.text().size()) {
    return NotSupported("asking for letters or digits in text beyond ASCII");
  }
  return AllChars(call, is);
}

StatusOr<Value> IsAlpha(const Call& call) { return AllAsciiChars(call, IsAsciiLetter); }
StatusOr<Value> IsDigits(const Call& call) { return AllAsciiChars(call, IsAsciiDigit); }
StatusOr<Value> IsAlnum(const Call& call) {
  return AllAsciiChars(call, [](char32_t c) { return IsAsciiLetter(c) || IsAsciiDigit(c); });
}
StatusOr<Value> IsSpaceMethod(const Call& call) { return AllChars(call, IsSpace); }
StatusOr<Value> IsAscii(const Call& call) {
  return Value::Bool(call.self.str().num_chars == call.self.text().size());
}
StatusOr<Value> IsPrintableMethod(const Call& call) {
  if (call.self.text().empty()) return Value::Bool(true);
  return AllChars(call, IsPrintable);
}
StatusOr<Value> IsLowerMethod(const Call& call) {
  RETURN_IF_ERROR(call.rt.StepBytes(8 * call.self.text().size()));
  return Value::Bool(IsLowerText(call.self.text()));
}
StatusOr<Value> IsUpperMethod(const Call& call) {
  RETURN_IF_ERROR(call.rt.StepBytes(8 * call.self.text().size()));
  return Value::Bool(IsUpperText(call.self.text()));
}

StatusOr<Value> IsTitle(const Call& call) {
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(8 * text.size()));
  bool in_word = false;
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextChar(text, &i);
    const bool cased = IsCased(c);
    if (cased && IsLower(c) != in_word) return Value::Bool(false);
    any = any || cased;
    in_word = cased;
  }
  return Value::Bool(any);
}

constexpr Builtin kStrSplitMethods[] = {
    {"isalnum", IsAlnum, ""},
    {"isalpha", IsAlpha, ""},
    {"isascii", IsAscii, ""},
    {"isdecimal", IsDigits, ""},
    {"isdigit", IsDigits, ""},
    {"islower", IsLowerMethod, ""},
    {"isnumeric", IsDigits, ""},
    {"isprintable", IsPrintableMethod, ""},
    {"isspace", IsSpaceMethod, ""},
    {"istitle", IsTitle, ""},
    {"isupper", IsUpperMethod, ""},
    {"join", Join, "-", 1},
    {"partition", Partition<false>, "-", 1},
    {"rpartition", Partition<true>, "-", 1},
    {"rsplit", Split<true>, "sep maxsplit"},
    {"split", Split<false>, "sep maxsplit"},
    {"splitlines", SplitLinesMethod, "keepends"},
};

}  // namespace

std::span<const Builtin> StrSplitMethods() { return kStrSplitMethods; }

}  // namespace flotilla::jinja
