// Templates rendered with some variables, for tests of the language.
#pragma once

#include <boost/json/parse.hpp>
#include <string>
#include <string_view>

#include "common/template/chat_template.h"

namespace flotilla {

struct Case {
  std::string_view source;
  std::string_view text;
};

// 2025-06-07 08:09:10, a Saturday.
inline std::tm FixedTime() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 5;
  now.tm_mday = 7;
  now.tm_hour = 8;
  now.tm_min = 9;
  now.tm_sec = 10;
  now.tm_wday = 6;
  now.tm_yday = 157;
  return now;
}

inline ChatTemplateInput InputWithVariables() {
  static const boost::json::value variables = boost::json::parse(
      R"~({"s": "Hello World", "u": "Zürich ß 中文 🙂", "n": 7, "f": 2.5, "l": [3, 1, 2], "e": "",
      "t": true, "nul": null, "d": {"b": 1, "a": [1, "x"], "items": 5},
      "objs": [{"name": "B", "k": 2}, {"name": "a", "k": 1}, {"name": "b"}]})~");
  ChatTemplateInput input;
  input.extra = variables.as_object();
  input.now = FixedTime();
  return input;
}

// The text, or "error: …".
inline std::string Rendered(std::string_view source,
                            const ChatTemplateInput& input = InputWithVariables(),
                            const ChatTemplateLimits& limits = {}) {
  const StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source, limits);
  if (!chat_template.ok()) return "error: " + chat_template.status().ToString();
  const StatusOr<std::string> text = chat_template->Render(input);
  return text.ok() ? *text : "error: " + text.status().ToString();
}

}  // namespace flotilla
