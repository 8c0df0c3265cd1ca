// Chat templates as a filter, for tests in other languages (template_live_test.py).
//
//   template_tool < cases > answers
// A case is a line of JSON: {"template": "…", "messages": …, "tools": …, "documents": …,
// "add_generation_prompt": …, "bos_token": …, "eos_token": …, "extra": {…}}, all but the template
// optional; {"repeat": N} renders it N times, for measuring. An answer is a line of JSON:
// {"text": "…"} or {"error": "…", "code": "INVALID_ARGUMENT"}, with "ns" a rendering if repeated.
// The time that strftime_now shows is 2025-06-07 08:09:10.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <iostream>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/template/chat_template.h"

namespace flotilla {
namespace {

namespace json = boost::json;

std::tm FixedTime() {
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

std::string TextOf(const json::value& value) {
  return {value.as_string().data(), value.as_string().size()};
}

ChatTemplateInput InputOf(const json::object& request) {
  const auto get = [&request](const char* name) {
    const json::value* value = request.if_contains(name);
    return value == nullptr ? json::value() : *value;
  };
  ChatTemplateInput input;
  input.messages = get("messages");
  input.tools = get("tools");
  input.documents = get("documents");
  input.add_generation_prompt = get("add_generation_prompt") == true;
  if (get("bos_token").is_string()) input.bos_token = TextOf(get("bos_token"));
  if (get("eos_token").is_string()) input.eos_token = TextOf(get("eos_token"));
  if (get("extra").is_object()) input.extra = get("extra").as_object();
  input.now = FixedTime();
  return input;
}

json::object Answer(const StatusOr<std::string>& text) {
  if (text.ok()) return {{"text", *text}};
  return {{"error", std::string(text.status().message())},
          {"code", absl::StatusCodeToString(text.status().code())}};
}

json::object Render(const StatusOr<ChatTemplate>& chat_template, const json::object& request) {
  if (!chat_template.ok()) return Answer(chat_template.status());
  const ChatTemplateInput input = InputOf(request);
  json::object answer = Answer(chat_template->Render(input));
  if (const json::value* repeat = request.if_contains("repeat")) {
    const int64_t start = RealClock::Now();
    for (int64_t i = 0; i < repeat->as_int64(); ++i) (void)chat_template->Render(input);
    answer["ns"] = (RealClock::Now() - start) / repeat->as_int64();
  }
  return answer;
}

int Run() {
  std::map<std::string, StatusOr<ChatTemplate>> templates;
  json::parse_options options;
  options.max_depth = 1000;
  std::string line;
  while (std::getline(std::cin, line)) {
    const json::value request = json::parse(line, {}, options);
    const std::string source = TextOf(request.at("template"));
    auto found = templates.find(source);
    if (found == templates.end()) {
      found = templates.emplace(source, ChatTemplate::Parse(source)).first;
    }
    std::cout << json::serialize(Render(found->second, request.as_object())) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace flotilla

int main() { return flotilla::Run(); }
