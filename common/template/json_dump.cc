#include "common/template/json_dump.h"

#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "common/template/numbers.h"
#include "common/template/sort.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

void AppendUnicodeEscape(char32_t c, std::string* out) {
  char buffer[16];
  if (c >= 0x10000) {
    AppendUnicodeEscape(0xd800 + ((c - 0x10000) >> 10), out);
    c = 0xdc00 + ((c - 0x10000) & 0x3ff);
  }
  std::snprintf(buffer, sizeof(buffer), "\\u%04x", static_cast<unsigned>(c));
  out->append(buffer);
}

void AppendChar(char32_t c, std::string_view bytes, bool ensure_ascii, std::string* out) {
  switch (c) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    case '\f':
      out->append("\\f");
      return;
    case '\b':
      out->append("\\b");
      return;
    default:
      break;
  }
  if (c < 0x20 || (ensure_ascii && c > 0x7e)) {
    AppendUnicodeEscape(c, out);
  } else {
    out->append(bytes);
  }
}

std::string FloatJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return FloatRepr(value);
}

class Dumper {
 public:
  Dumper(Runtime& rt, const JsonOptions& options) : rt_(rt), options_(options) {}

  Status Dump(const Value& value, int level) {
    RETURN_IF_ERROR(rt_.Step());
    const DepthGuard guard(rt_);
    RETURN_IF_ERROR(guard.status());
    switch (value.kind()) {
      case Kind::kStr:
        return DumpText(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return DumpList(value.items(), level);
      case Kind::kDict:
        return DumpDict(value.dict(), level);
      default:
        break;
    }
    ASSIGN_OR_RETURN(const std::string text, Scalar(value));
    return rt_.Append(text, &out_);
  }

  std::string TakeOutput() { return std::move(out_); }

 private:
  static StatusOr<std::string> Scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        return std::string("null");
      case Kind::kBool:
        return std::string(value.bool_value() ? "true" : "false");
      case Kind::kInt:
        return StrCat(value.int_value());
      case Kind::kWideInt:
        return StrCat(value.wide_value());
      case Kind::kFloat:
        return FloatJson(value.float_value());
      default:
        return TypeError(StrCat("Object of type ", value.TypeName(), " is not JSON serializable"));
    }
  }

  Status DumpText(std::string_view text) {
    RETURN_IF_ERROR(rt_.StepBytes(text.size()));
    constexpr size_t kPartBytes = 4096;
    std::string quoted = "\"";
    for (size_t i = 0; i < text.size();) {
      if (quoted.size() >= kPartBytes) {  // an escape may be six times as long as its character
        RETURN_IF_ERROR(rt_.Append(quoted, &out_));
        quoted.clear();
      }
      const size_t begin = i;
      const char32_t c = NextChar(text, &i);
      AppendChar(c, text.substr(begin, i - begin), options_.ensure_ascii, &quoted);
    }
    quoted.push_back('"');
    return rt_.Append(quoted, &out_);
  }

  Status NewLine(int level) {
    if (!options_.indent.has_value()) return OkStatus();
    RETURN_IF_ERROR(rt_.Append("\n", &out_));
    for (int i = 0; i < level; ++i) RETURN_IF_ERROR(rt_.Append(*options_.indent, &out_));
    return OkStatus();
  }

  Status DumpList(const std::vector<Value>& items, int level) {
    if (items.empty()) return rt_.Append("[]", &out_);
    RETURN_IF_ERROR(rt_.Append("[", &out_));
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) RETURN_IF_ERROR(rt_.Append(options_.item_separator, &out_));
      RETURN_IF_ERROR(NewLine(level + 1));
      RETURN_IF_ERROR(Dump(items[i], level + 1));
    }
    RETURN_IF_ERROR(NewLine(level));
    return rt_.Append("]", &out_);
  }

  Status DumpDict(const Dict& dict, int level) {
    if (dict.size() == 0) return rt_.Append("{}", &out_);
    ASSIGN_OR_RETURN(const std::vector<size_t> order, Order(dict));
    RETURN_IF_ERROR(rt_.Append("{", &out_));
    for (size_t i = 0; i < order.size(); ++i) {
      const Dict::Entry& entry = dict.entries()[order[i]];
      if (i > 0) RETURN_IF_ERROR(rt_.Append(options_.item_separator, &out_));
      RETURN_IF_ERROR(NewLine(level + 1));
      RETURN_IF_ERROR(DumpKey(entry.key));
      RETURN_IF_ERROR(rt_.Append(options_.key_separator, &out_));
      RETURN_IF_ERROR(Dump(entry.value, level + 1));
    }
    RETURN_IF_ERROR(NewLine(level));
    return rt_.Append("}", &out_);
  }

  Status DumpKey(const Value& key) {
    if (key.is_str()) return DumpText(key.text());
    if (!key.is_number() && !key.is_none()) {
      return TypeError(StrCat("keys must be str, int, float, bool or None, not ", key.TypeName()));
    }
    ASSIGN_OR_RETURN(const std::string text, Scalar(key));
    return DumpText(text);
  }

  // The positions of the dict's entries in the order in which they are written.
  StatusOr<std::vector<size_t>> Order(const Dict& dict) {
    if (!options_.sort_keys) {
      std::vector<size_t> order(dict.size());
      std::iota(order.begin(), order.end(), size_t{0});
      return order;
    }
    std::vector<Value> keys;
    for (const Dict::Entry& entry : dict.entries()) keys.push_back(entry.key);
    return SortedOrder(rt_, keys, /*reverse=*/false);
  }

  Runtime& rt_;
  const JsonOptions& options_;
  std::string out_;
};

}  // namespace

StatusOr<std::string> DumpJson(Runtime& rt, const Value& value, const JsonOptions& options) {
  Dumper dumper(rt, options);
  RETURN_IF_ERROR(dumper.Dump(value, /*level=*/0));
  return dumper.TakeOutput();
}

}  // namespace flotilla::jinja
