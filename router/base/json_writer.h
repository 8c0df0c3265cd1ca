// JSON text by appending: for answers, where a tree of values would be built only to be written.
//
// Strings must be valid UTF-8 (protobuf's strings are). Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla {

// "…" with quotes, backslashes and control characters escaped.
void AppendJsonString(std::string_view text, std::string* out);
inline std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}
// The shortest text that reads back as the same float, always with a point or exponent. JSON has
// no infinity: what is not finite becomes -9999.0, as in vLLM.
void AppendJsonFloat(float value, std::string* out);
// `,` unless *out is empty: between the entries of an array that is built up.
inline void AppendComma(std::string* out) {
  if (!out->empty()) out->push_back(',');
}

}  // namespace flotilla
