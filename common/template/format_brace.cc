// format.format(…).
#include <algorithm>
#include <optional>
#include <string>

#include "common/template/access.h"
#include "common/template/format.h"
#include "common/template/numbers.h"
#include "common/template/to_text.h"

namespace flotilla::jinja {
namespace {

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, std::string_view format, const CallArgs& args)
      : rt_(rt), rest_(format), args_(args) {}

  StatusOr<std::string> Format() {
    std::string out;
    while (!rest_.empty()) {
      const size_t brace = std::min(rest_.find_first_of("{}"), rest_.size());
      RETURN_IF_ERROR(rt_.Append(rest_.substr(0, brace), &out));
      rest_.remove_prefix(brace);
      if (rest_.empty()) break;
      const char c = rest_.front();
      if (rest_.size() > 1 && rest_[1] == c) {
        RETURN_IF_ERROR(rt_.Append(rest_.substr(0, 1), &out));
        rest_.remove_prefix(2);
        continue;
      }
      if (c == '}') return TypeError("Single '}' encountered in format string");
      rest_.remove_prefix(1);
      RETURN_IF_ERROR(Field(&out));
    }
    return out;
  }

 private:
  // name[!conversion][:spec]} at the start of rest_.
  Status Field(std::string* out) {
    const size_t end = rest_.find_first_of("{}");
    if (end == std::string_view::npos) return TypeError("expected '}' before end of string");
    if (rest_[end] == '{') return NotSupported("a replacement field in another");
    std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    ASSIGN_OR_RETURN(Value value, Lookup(field.substr(0, name_end)));
    field.remove_prefix(name_end);
    if (!field.empty() && field[0] == '!') {
      if (field.size() < 2 || (field.size() > 2 && field[2] != ':')) {
        return TypeError("expected ':' after conversion specifier");
      }
      ASSIGN_OR_RETURN(value, Convert(value, field[1]));
      field.remove_prefix(2);
    }
    const std::string_view spec = field.empty() ? field : field.substr(1);
    ASSIGN_OR_RETURN(const std::string text, FormatField(rt_, value, spec));
    return rt_.Append(text, out);
  }

  StatusOr<Value> Convert(const Value& value, char conversion) {
    std::string text;
    if (conversion == 's') {
      RETURN_IF_ERROR(AppendStr(rt_, value, &text));
    } else if (conversion == 'r') {
      RETURN_IF_ERROR(AppendRepr(rt_, value, &text));
    } else {
      return NotSupported("this conversion of a replacement field");
    }
    return rt_.NewStr(std::move(text));
  }

  // "", "0" or "key", then ".attribute" and "[index]" any number of times.
  StatusOr<Value> Lookup(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    ASSIGN_OR_RETURN(Value value, First(name.substr(0, first_end)));
    name.remove_prefix(first_end);
    while (!name.empty()) {
      if (name[0] == '.') {
        const size_t end = std::min(name.find_first_of(".[", 1), name.size());
        if (end == 1) return TypeError("Empty attribute in format string");
        ASSIGN_OR_RETURN(value, GetAttribute(rt_, value, name.substr(1, end - 1)));
        name.remove_prefix(end);
        continue;
      }
      const size_t end = name.find(']');
      if (name[0] != '[' || end == std::string_view::npos || end == 1) {
        return TypeError("malformed replacement field in format string");
      }
      ASSIGN_OR_RETURN(const Value key, Index(name.substr(1, end - 1)));
      ASSIGN_OR_RETURN(value, GetItem(rt_, value, key));
      name.remove_prefix(end + 1);
    }
    return value;
  }

  StatusOr<Value> Index(std::string_view text) {
    int64_t index = 0;
    if (IsNumber(text) && ParseInt(text, 10, &index) == IntParse::kOk) return Value::Int(index);
    return rt_.NewStr(text);
  }

  StatusOr<Value> First(std::string_view name) {
    if (!name.empty() && !IsNumber(name)) {
      RETURN_IF_ERROR(rt_.Step(1 + static_cast<int64_t>(args_.named.size() / 8)));
      const auto found = std::find_if(args_.named.begin(), args_.named.end(),
                                      [name](const auto& arg) { return arg.first == name; });
      if (found == args_.named.end()) return TypeError(StrCat("no argument '", name, "'"));
      return found->second;
    }
    const bool automatic = name.empty();
    if (automatic_.value_or(automatic) != automatic) {
      return TypeError("cannot mix automatic field numbering and manual field specification");
    }
    automatic_ = automatic;
    int64_t index = next_;
    if (automatic) {
      ++next_;
    } else if (ParseInt(name, 10, &index) != IntParse::kOk) {
      return TypeError("Too many decimal digits in format string");
    }
    if (index >= static_cast<int64_t>(args_.positional.size())) {
      return TypeError("Replacement index out of range for positional args tuple");
    }
    return args_.positional[static_cast<size_t>(index)];
  }

  Runtime& rt_;
  std::string_view rest_;
  const CallArgs& args_;
  std::optional<bool> automatic_;  // whether fields are numbered by their order
  int64_t next_ = 0;
};

}  // namespace

StatusOr<Value> BraceFormat(Runtime& rt, const Value& format, const CallArgs& args) {
  if (format.is_markup()) return NotSupported("format() of Markup");
  RETURN_IF_ERROR(rt.StepBytes(8 * format.text().size()));
  ASSIGN_OR_RETURN(std::string text, BraceFormatter(rt, format.text(), args).Format());
  return rt.NewStr(std::move(text));
}

}  // namespace flotilla::jinja
