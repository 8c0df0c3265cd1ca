// Methods of str that look at a string or make another one of it; splitting has its own file.
#include <algorithm>
#include <optional>
#include <string>

#include "common/template/builtin.h"
#include "common/template/format.h"
#include "common/template/operators.h"
#include "common/template/search.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

StatusOr<Value> Result(const Call& call, std::string text) {
  return call.rt.NewStr(std::move(text), call.self.is_markup());
}

// A part of the string itself.
StatusOr<Value> Part(const Call& call, std::string_view part) {
  RETURN_IF_ERROR(call.rt.StepBytes(call.self.text().size()));
  if (part.size() == call.self.text().size()) return call.self;
  return Result(call, std::string(part));
}

using TextFunction = std::string (*)(std::string_view);
template <TextFunction kFunction>
StatusOr<Value> MapText(const Call& call) {
  RETURN_IF_ERROR(call.rt.StepBytes(8 * call.self.text().size()));
  return Result(call, kFunction(call.self.text()));
}

template <Side kSide>
StatusOr<Value> Strip(const Call& call) {
  if (!call.given(0) || call.arg(0).is_none()) {
    return Part(call, StripSpace(call.self.text(), kSide));
  }
  ASSIGN_OR_RETURN(const std::string_view chars, TextArg(call, 0));
  RETURN_IF_ERROR(call.rt.StepBytes(8 * chars.size()));
  return Part(call, StripChars(call.self.text(), chars, kSide));
}

StatusOr<Value> RemovePrefix(const Call& call) {
  ASSIGN_OR_RETURN(const std::string_view prefix, TextArg(call, 0));
  const std::string_view text = call.self.text();
  return Part(call, text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

StatusOr<Value> RemoveSuffix(const Call& call) {
  ASSIGN_OR_RETURN(const std::string_view suffix, TextArg(call, 0));
  const std::string_view text = call.self.text();
  return Part(call, text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
}

// The part of the string between the arguments `first` and `first` + 1, which count characters.
struct Window {
  std::string_view text;
  int64_t start;  // characters before it
};

StatusOr<int64_t> BoundArg(const Call& call, size_t i, int64_t default_value) {
  if (call.given(i) && call.arg(i).is_none()) return default_value;
  return IntArg(call, i, default_value);
}

StatusOr<std::optional<Window>> WindowArgs(const Call& call, size_t first) {
  const int64_t length = static_cast<int64_t>(call.self.str().num_chars);
  ASSIGN_OR_RETURN(int64_t start, BoundArg(call, first, 0));
  ASSIGN_OR_RETURN(int64_t end, BoundArg(call, first + 1, length));
  if (start < 0) start = std::max<int64_t>(start + length, 0);
  if (end < 0) end = std::max<int64_t>(end + length, 0);
  end = std::min(end, length);
  if (start > end) return std::nullopt;
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  const size_t begin = ByteOfChar(text, static_cast<size_t>(start));
  const size_t size = ByteOfChar(text.substr(begin), static_cast<size_t>(end - start));
  return Window{text.substr(begin, size), start};
}

// -1 if it is not there.
StatusOr<int64_t> FindChar(const Call& call, bool from_right) {
  ASSIGN_OR_RETURN(const std::string_view part, TextArg(call, 0));
  ASSIGN_OR_RETURN(const auto window, WindowArgs(call, 1));
  if (!window.has_value()) return -1;
  const size_t found = from_right ? RFindText(window->text, part) : FindText(window->text, part);
  if (found == std::string_view::npos) return -1;
  return window->start + static_cast<int64_t>(CountChars(window->text.substr(0, found)));
}

template <bool kFromRight, bool kMustBeThere>
StatusOr<Value> Find(const Call& call) {
  ASSIGN_OR_RETURN(const int64_t found, FindChar(call, kFromRight));
  if (kMustBeThere && found < 0) return TypeError("substring not found");
  return Value::Int(found);
}

// Places of `part` that don't overlap; before and behind every character if it is empty.
size_t CountParts(std::string_view text, std::string_view part) {
  if (part.empty()) return CountChars(text) + 1;
  size_t count = 0;
  for (size_t i = 0; (i = FindText(text, part, i)) != std::string_view::npos; i += part.size())
    ++count;
  return count;
}

StatusOr<Value> Count(const Call& call) {
  ASSIGN_OR_RETURN(const std::string_view part, TextArg(call, 0));
  ASSIGN_OR_RETURN(const auto window, WindowArgs(call, 1));
  if (!window.has_value()) return Value::Int(0);
  return Value::Int(static_cast<int64_t>(CountParts(window->text, part)));
}

// startswith and endswith: one string or a tuple of them.
template <bool kAtEnd>
StatusOr<Value> HasAffix(const Call& call) {
  ASSIGN_OR_RETURN(const auto window, WindowArgs(call, 1));
  const auto matches = [&window](std::string_view affix) {
    if (!window.has_value()) return false;
    return kAtEnd ? window->text.ends_with(affix) : window->text.starts_with(affix);
  };
  const Value& arg = call.arg(0);
  if (arg.is_str()) return Value::Bool(matches(arg.text()));
  if (!arg.is(Kind::kTuple)) {
    return TypeError(StrCat("first arg must be str or a tuple of str, not ", arg.TypeName()));
  }
  for (const Value& affix : arg.items()) {
    if (!affix.is_str()) return TypeError("tuple must only contain str");
    RETURN_IF_ERROR(call.rt.StepBytes(affix.text().size()));
    if (matches(affix.text())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

std::string ReplaceParts(std::string_view text, std::string_view part, std::string_view by,
                         size_t count) {
  std::string out;
  for (size_t done = 0; count > 0; --count) {
    const size_t found = FindText(text, part, done);
    out.append(text.substr(done, found - done)).append(by);
    done = found + part.size();
    if (count == 1) out.append(text.substr(done));
  }
  return out;
}

// "abc" → "-a-b-c-"
std::string InsertBetween(std::string_view text, std::string_view by, size_t count) {
  std::string out;
  size_t i = 0;
  for (; count > 0; --count) {
    out.append(by);
    const size_t begin = i;
    if (i < text.size()) NextChar(text, &i);
    out.append(text.substr(begin, i - begin));
  }
  return out.append(text.substr(i));
}

StatusOr<Value> Replace(const Call& call) {
  ASSIGN_OR_RETURN(const std::string_view part, TextArg(call, 0));
  RETURN_IF_ERROR(TextArg(call, 1).status());
  ASSIGN_OR_RETURN(const int64_t most, IntArg(call, 2, -1));
  Value by = call.arg(1);
  if (call.self.is_markup()) {
    ASSIGN_OR_RETURN(by, EscapeHtml(call.rt, by));
  }
  const std::string_view text = call.self.text();
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  size_t count = CountParts(text, part);
  if (most >= 0) count = std::min(count, static_cast<size_t>(most));
  if (count == 0) return call.self;
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, by.text().size(), &bytes)) bytes = SIZE_MAX / 2;
  RETURN_IF_ERROR(call.rt.CheckRoom(bytes));
  RETURN_IF_ERROR(call.rt.StepBytes(bytes));
  return Result(call, part.empty() ? InsertBetween(text, by.text(), count)
                                   : ReplaceParts(text, part, by.text(), count));
}

// Pads to a width; `left_of(missing)` characters of them on the left.
template <typename LeftOf>
StatusOr<Value> PadText(const Call& call, LeftOf left_of) {
  ASSIGN_OR_RETURN(int64_t width, IntArg(call, 0, 0));
  width = std::max<int64_t>(width, 0);
  std::string fill = " ";
  if (call.given(1)) {
    if (!call.arg(1).is_str() || call.arg(1).str().num_chars != 1) {
      return TypeError("The fill character must be exactly one character long");
    }
    ASSIGN_OR_RETURN(const Value escaped,
                     call.self.is_markup() ? EscapeHtml(call.rt, call.arg(1)) : call.arg(1));
    if (escaped.str().num_chars != 1) {
      return TypeError("The fill character must be exactly one character long");
    }
    fill = std::string(escaped.text());
  }
  const int64_t missing = width - static_cast<int64_t>(call.self.str().num_chars);
  if (missing <= 0) return call.self;
  RETURN_IF_ERROR(call.rt.CheckRoom(static_cast<size_t>(missing)));
  RETURN_IF_ERROR(call.rt.CheckRoom(static_cast<size_t>(missing) * fill.size()));
  RETURN_IF_ERROR(call.rt.StepBytes(static_cast<size_t>(missing) * fill.size()));
  const int64_t left = left_of(missing, width);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(call.self.text());
  for (int64_t i = left; i < missing; ++i) out.append(fill);
  return Result(call, std::move(out));
}

StatusOr<Value> LJust(const Call& call) {
  return PadText(call, [](int64_t, int64_t) { return int64_t{0}; });
}
StatusOr<Value> RJust(const Call& call) {
  return PadText(call, [](int64_t missing, int64_t) { return missing; });
}
StatusOr<Value> Center(const Call& call) {
  return PadText(call, [](int64_t missing, int64_t width) {
    return missing / 2 + (missing & width & 1);  // Python's way to place the odd one
  });
}

StatusOr<Value> ZFill(const Call& call) {
  ASSIGN_OR_RETURN(const int64_t width, IntArg(call, 0, 0));
  const std::string_view text = call.self.text();
  const size_t head = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  Layout layout;
  layout.fill.assign(1, '0');
  layout.width = width;
  ASSIGN_OR_RETURN(std::string out, Pad(call.rt, text, head, '=', layout));
  return Result(call, std::move(out));
}

StatusOr<Value> ExpandTabs(const Call& call) {
  ASSIGN_OR_RETURN(const int64_t tab, IntArg(call, 0, 8));
  const std::string_view text = call.self.text();
  const size_t tabs = static_cast<size_t>(std::count(text.begin(), text.end(), '\t'));
  const size_t size = static_cast<size_t>(std::clamp<int64_t>(tab, 0, INT32_MAX));
  RETURN_IF_ERROR(call.rt.CheckRoom(tabs * size));
  RETURN_IF_ERROR(call.rt.StepBytes(tabs * size + text.size()));
  std::string out;
  size_t column = 0;
  for (char c : text) {
    if (c == '\t') {
      const size_t spaces = size == 0 ? 0 : size - column % size;
      out.append(spaces, ' ');
      column += spaces;
      continue;
    }
    out.push_back(c);
    if ((static_cast<uint8_t>(c) & 0xc0) != 0x80) ++column;
    if (c == '\n' || c == '\r') column = 0;
  }
  return Result(call, std::move(out));
}

StatusOr<Value> Format(const Call& call) { return BraceFormat(call.rt, call.self, call.all); }

constexpr Builtin kStrMethods[] = {
    {"capitalize", MapText<Capitalize>, ""},
    {"center", Center, "- -", 1},
    {"count", Count, "- - -", 1},
    {"endswith", HasAffix<true>, "- - -", 1},
    {"expandtabs", ExpandTabs, "tabsize"},
    {"find", Find<false, false>, "- - -", 1},
    {"format", Format, "*"},
    {"index", Find<false, true>, "- - -", 1},
    {"ljust", LJust, "- -", 1},
    {"lower", MapText<Lower>, ""},
    {"lstrip", Strip<Side::kLeft>, "-"},
    {"removeprefix", RemovePrefix, "-", 1},
    {"removesuffix", RemoveSuffix, "-", 1},
    {"replace", Replace, "- - -", 2},
    {"rfind", Find<true, false>, "- - -", 1},
    {"rindex", Find<true, true>, "- - -", 1},
    {"rjust", RJust, "- -", 1},
    {"rstrip", Strip<Side::kRight>, "-"},
    {"startswith", HasAffix<false>, "- - -", 1},
    {"strip", Strip<Side::kBoth>, "-"},
    {"swapcase", MapText<SwapCase>, ""},
    {"title", MapText<Title>, ""},
    {"upper", MapText<Upper>, ""},
    {"zfill", ZFill, "-", 1},
};

}  // namespace

std::span<const Builtin> StrMethods() { return kStrMethods; }

}  // namespace flotilla::jinja
