#include "common/template/to_text.h"

#include <cstdio>

#include "common/template/iterate.h"
#include "common/template/numbers.h"
#include "common/template/objects.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

void AppendEscaped(char32_t c, std::string* out) {
  char buffer[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(c));
  out->append(buffer);
}

Status AppendItems(Runtime& rt, const std::vector<Value>& items, std::string* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(rt.Append(", ", out));
    RETURN_IF_ERROR(AppendRepr(rt, items[i], out));
  }
  return OkStatus();
}

Status AppendDict(Runtime& rt, const Dict& dict, std::string* out) {
  RETURN_IF_ERROR(rt.Append("{", out));
  bool first = true;
  for (const Dict::Entry& entry : dict.entries()) {
    if (!first) RETURN_IF_ERROR(rt.Append(", ", out));
    first = false;
    RETURN_IF_ERROR(AppendRepr(rt, entry.key, out));
    RETURN_IF_ERROR(rt.Append(": ", out));
    RETURN_IF_ERROR(AppendRepr(rt, entry.value, out));
  }
  return rt.Append("}", out);
}

Status AppendList(Runtime& rt, const Value& value, std::string* out) {
  const bool tuple = value.is(Kind::kTuple);
  RETURN_IF_ERROR(rt.Append(tuple ? "(" : "[", out));
  RETURN_IF_ERROR(AppendItems(rt, value.items(), out));
  if (tuple && value.items().size() == 1) RETURN_IF_ERROR(rt.Append(",", out));
  return rt.Append(tuple ? ")" : "]", out);
}

Status AppendView(Runtime& rt, const Value& value, std::string* out) {
  RETURN_IF_ERROR(rt.Append(StrCat(value.TypeName(), "(["), out));
  ASSIGN_OR_RETURN(const std::vector<Value> items, ToVector(rt, value));
  RETURN_IF_ERROR(AppendItems(rt, items, out));
  return rt.Append("])", out);
}

Status AppendRange(Runtime& rt, const Range& range, std::string* out) {
  const std::string ends = StrCat("range(", range.start, ", ", range.stop);
  return rt.Append(range.step == 1 ? ends + ")" : StrCat(ends, ", ", range.step, ")"), out);
}

Status AppendMacro(Runtime& rt, const Macro& macro, std::string* out) {
  if (macro.def->name.empty()) return rt.Append("<Macro anonymous>", out);
  return rt.Append(StrCat("<Macro ", ReprOfText(macro.def->name), ">"), out);
}

Status AppendLoop(Runtime& rt, LoopContext& loop, std::string* out) {
  ASSIGN_OR_RETURN(const int64_t length, loop.Length(rt));
  return rt.Append(StrCat("<LoopContext ", loop.index0() + 1, "/", length, ">"), out);
}

Status AppendNamespace(Runtime& rt, const Namespace& ns, std::string* out) {
  RETURN_IF_ERROR(rt.Append("<Namespace ", out));
  RETURN_IF_ERROR(AppendDict(rt, ns.attributes, out));
  return rt.Append(">", out);
}

}  // namespace

std::string ReprOfText(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = NextChar(text, &i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (IsPrintable(c)) {
      out.append(text.substr(begin, i - begin));
    } else {
      AppendEscaped(c, &out);
    }
  }
  out.push_back(quote);
  return out;
}

Status AppendRepr(Runtime& rt, const Value& value, std::string* out) {
  RETURN_IF_ERROR(rt.Step());
  const DepthGuard guard(rt);
  RETURN_IF_ERROR(guard.status());
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return rt.Append("Undefined", out);
    case Kind::kNone:
      return rt.Append("None", out);
    case Kind::kBool:
      return rt.Append(value.bool_value() ? "True" : "False", out);
    case Kind::kInt:
      return rt.Append(StrCat(value.int_value()), out);
    case Kind::kWideInt:
      return rt.Append(StrCat(value.wide_value()), out);
    case Kind::kFloat:
      return rt.Append(FloatRepr(value.float_value()), out);
    case Kind::kStr: {
      const std::string repr = ReprOfText(value.text());
      return rt.Append(value.is_markup() ? StrCat("Markup(", repr, ")") : repr, out);
    }
    case Kind::kList:
    case Kind::kTuple:
      return AppendList(rt, value, out);
    case Kind::kDict:
      return AppendDict(rt, value.dict(), out);
    case Kind::kDictView:
      return AppendView(rt, value, out);
    case Kind::kRange:
      return AppendRange(rt, value.range(), out);
    case Kind::kNamespace:
      return AppendNamespace(rt, value.As<Namespace>(), out);
    case Kind::kLoop:
      return AppendLoop(rt, value.As<LoopContext>(), out);
    case Kind::kMacro:
      return AppendMacro(rt, value.As<Macro>(), out);
    default:
      return NotSupported(StrCat("printing a ", value.TypeName()));
  }
}

Status AppendStr(Runtime& rt, const Value& value, std::string* out) {
  if (value.is_str()) {
    RETURN_IF_ERROR(rt.StepBytes(value.text().size()));
    return rt.Append(value.text(), out);
  }
  if (value.is_undefined()) return OkStatus();
  return AppendRepr(rt, value, out);
}

StatusOr<std::string> ToText(Runtime& rt, const Value& value) {
  std::string text;
  RETURN_IF_ERROR(AppendStr(rt, value, &text));
  return text;
}

StatusOr<Value> SoftStr(Runtime& rt, const Value& value) {
  if (value.is_str()) return value;
  ASSIGN_OR_RETURN(std::string text, ToText(rt, value));
  return rt.NewStr(std::move(text));
}

}  // namespace flotilla::jinja
