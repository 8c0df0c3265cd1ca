// Filters that make text.
#include <string>
#include <vector>

#include "common/template/attribute_path.h"
#include "common/template/builtin.h"
#include "common/template/format.h"
#include "common/template/iterate.h"
#include "common/template/json_dump.h"
#include "common/template/operators.h"
#include "common/template/to_text.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

// The method of that name of the value's text.
StatusOr<Value> ByMethod(const Call& call, std::string_view method, const CallArgs& args) {
  ASSIGN_OR_RETURN(const Value text, SoftStr(call.rt, call.self));
  return CallBuiltin(call.rt, *FindIn(StrMethods(), method), text, args);
}

StatusOr<Value> UpperFilter(const Call& call) { return ByMethod(call, "upper", {}); }
StatusOr<Value> LowerFilter(const Call& call) { return ByMethod(call, "lower", {}); }
StatusOr<Value> CapitalizeFilter(const Call& call) { return ByMethod(call, "capitalize", {}); }
StatusOr<Value> StringFilter(const Call& call) { return SoftStr(call.rt, call.self); }

StatusOr<Value> Trim(const Call& call) {
  return ByMethod(call, "strip", {{call.given(0) ? call.arg(0) : Value::None()}, {}});
}

StatusOr<Value> CenterFilter(const Call& call) {
  return ByMethod(call, "center", {{call.given(0) ? call.arg(0) : Value::Int(80)}, {}});
}

// All of them become plain strings.
StatusOr<Value> ReplaceFilter(const Call& call) {
  CallArgs args;
  for (size_t i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(std::string text, ToText(call.rt, call.arg(i)));
    ASSIGN_OR_RETURN(args.positional.emplace_back(), call.rt.NewStr(std::move(text)));
  }
  if (call.given(2) && !call.arg(2).is_none()) args.positional.push_back(call.arg(2));
  ASSIGN_OR_RETURN(Value text, SoftStr(call.rt, call.self));
  if (text.is_markup()) {
    ASSIGN_OR_RETURN(text, call.rt.NewStr(text.text()));
  }
  return CallBuiltin(call.rt, *FindIn(StrMethods(), "replace"), text, args);
}

bool BeginsWord(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || IsSpace(c);
}

// jinja2's own rule for where words begin, not str.title()'s.
StatusOr<Value> TitleFilter(const Call& call) {
  ASSIGN_OR_RETURN(const Value value, SoftStr(call.rt, call.self));
  const std::string_view text = value.text();
  RETURN_IF_ERROR(call.rt.StepBytes(8 * text.size()));
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const bool separators = BeginsWord(NextChar(text, &i));
    const size_t second = i;
    for (size_t next = i; next < text.size(); i = next) {
      if (BeginsWord(NextChar(text, &next)) != separators) break;
    }
    out += Upper(text.substr(begin, second - begin));
    out += Lower(text.substr(second, i - second));
  }
  return call.rt.NewStr(std::move(out));
}

StatusOr<Value> JoinFilter(const Call& call) {
  AttributePath path;
  if (call.given(1) && !call.arg(1).is_none()) {
    ASSIGN_OR_RETURN(path, AttributePath::Parse(call.rt, call.arg(1)));
  }
  std::string separator;
  if (call.given(0)) {
    ASSIGN_OR_RETURN(separator, ToText(call.rt, call.arg(0)));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(call.rt, call.self));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(call.rt.Append(separator, &out));
    ASSIGN_OR_RETURN(const Value item, path.Get(call.rt, items[i]));
    RETURN_IF_ERROR(AppendStr(call.rt, item, &out));
  }
  return call.rt.NewStr(std::move(out));
}

StatusOr<std::string> IndentText(const Call& call, const Value& width) {
  if (width.is_str()) {
    RETURN_IF_ERROR(call.rt.Charge(width.text().size()));
    RETURN_IF_ERROR(call.rt.StepBytes(width.text().size()));
    return std::string(width.text());
  }
  ASSIGN_OR_RETURN(const int64_t count, ToInt(width));
  const size_t size = count < 0 ? 0 : static_cast<size_t>(count);
  RETURN_IF_ERROR(call.rt.Charge(size));
  RETURN_IF_ERROR(call.rt.StepBytes(size));
  return std::string(size, ' ');
}

StatusOr<Value> Indent(const Call& call) {
  if (!call.self.is_str()) {
    return TypeError(call.self.is_undefined()
                         ? call.self.undefined_message()
                         : StrCat("indent needs a str, not ", call.self.TypeName()));
  }
  ASSIGN_OR_RETURN(const std::string indent,
                   IndentText(call, call.given(0) ? call.arg(0) : Value::Int(4)));
  const bool first = call.given(1) && call.arg(1).Truthy();
  const bool blank = call.given(2) && call.arg(2).Truthy();
  // A newline at the end counts as the start of another line, which splitlines() would drop.
  const std::string text = std::string(call.self.text()) + "\n";
  RETURN_IF_ERROR(call.rt.StepBytes(text.size()));
  std::string out = first ? indent : "";
  bool first_line = true;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = TakeLine(&rest, /*keep_end=*/false);
    if (!first_line) RETURN_IF_ERROR(call.rt.Append("\n", &out));
    if (!first_line && (blank || !line.empty())) RETURN_IF_ERROR(call.rt.Append(indent, &out));
    RETURN_IF_ERROR(call.rt.Append(line, &out));
    first_line = false;
  }
  return call.rt.NewStr(std::move(out), call.self.is_markup());
}

StatusOr<Value> FormatFilter(const Call& call) {
  if (!call.all.positional.empty() && !call.all.named.empty()) {
    return TypeError("can't handle positional and keyword arguments at the same time");
  }
  ASSIGN_OR_RETURN(const Value format, SoftStr(call.rt, call.self));
  if (call.all.named.empty()) {
    ASSIGN_OR_RETURN(const Value args, call.rt.NewTuple(call.all.positional));
    return PercentFormat(call.rt, format, args);
  }
  Dict named;
  for (const auto& [name, value] : call.all.named) {
    ASSIGN_OR_RETURN(Value key, call.rt.NewStr(name));
    named.Set(std::move(key), value);
  }
  ASSIGN_OR_RETURN(const Value args, call.rt.NewDict(std::move(named)));
  return PercentFormat(call.rt, format, args);
}

StatusOr<Value> Escape(const Call& call) { return EscapeHtml(call.rt, call.self); }

StatusOr<Value> ForceEscape(const Call& call) {
  ASSIGN_OR_RETURN(std::string text, ToText(call.rt, call.self));
  ASSIGN_OR_RETURN(const Value plain, call.rt.NewStr(std::move(text)));
  return EscapeHtml(call.rt, plain);
}

StatusOr<Value> Safe(const Call& call) {
  if (call.self.is_markup()) return call.self;
  ASSIGN_OR_RETURN(std::string text, ToText(call.rt, call.self));
  return call.rt.NewStr(std::move(text), /*markup=*/true);
}

Status SetSeparators(const Value& value, JsonOptions* options) {
  if (!value.is_sequence() || value.items().size() != 2 || !value.items()[0].is_str() ||
      !value.items()[1].is_str()) {
    return TypeError("tojson's separators must be two strings");
  }
  options->item_separator = std::string(value.items()[0].text());
  options->key_separator = std::string(value.items()[1].text());
  return OkStatus();
}

// transformers' tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
StatusOr<Value> ToJson(const Call& call) {
  JsonOptions options;
  options.ensure_ascii = call.given(0) && call.arg(0).Truthy();
  if (call.given(1) && !call.arg(1).is_none()) {
    ASSIGN_OR_RETURN(options.indent, IndentText(call, call.arg(1)));
    options.item_separator.assign(1, ',');
  }
  if (call.given(2) && !call.arg(2).is_none()) {
    RETURN_IF_ERROR(SetSeparators(call.arg(2), &options));
  }
  options.sort_keys = call.given(3) && call.arg(3).Truthy();
  ASSIGN_OR_RETURN(std::string json, DumpJson(call.rt, call.self, options));
  return call.rt.NewStr(std::move(json));
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", CapitalizeFilter, ""},
    {"center", CenterFilter, "width"},
    {"e", Escape, ""},
    {"escape", Escape, ""},
    {"forceescape", ForceEscape, ""},
    {"format", FormatFilter, "*"},
    {"indent", Indent, "width first blank"},
    {"join", JoinFilter, "d attribute"},
    {"lower", LowerFilter, ""},
    {"replace", ReplaceFilter, "old new count", 2},
    {"safe", Safe, ""},
    {"string", StringFilter, ""},
    {"title", TitleFilter, ""},
    {"tojson", ToJson, "ensure_ascii indent separators sort_keys"},
    {"trim", Trim, "chars"},
    {"upper", UpperFilter, ""},
};

}  // namespace

std::span<const Builtin> TextFilters() { return kTextFilters; }

}  // namespace flotilla::jinja
