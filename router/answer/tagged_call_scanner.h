// A call as Qwen3-Coder writes it, from pieces of its text:
//
//   <function=f>
//   <parameter=city>
//   Paris
//   </parameter>
//   </function>
//
// It becomes JSON parameter by parameter; of two of one name the first counts. A value is text, or
// JSON where the tool's schema says so; what should be JSON and is none is text. Models forget end
// tags: a value ends at the next parameter, or where function and call end, too, a call where its
// own tag or the output ends. What else stands between parameters is passed over. It is a call once
// a parameter or its end follows the name.
// Threads: one at a time. Errors: kFailed, if it begins otherwise. Source: the model's chat
// template; vLLM's and SGLang's parsers of the name qwen3_coder do the same with types.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "router/answer/call_scanner.h"

namespace flotilla {

inline constexpr std::string_view kFunctionTag = "<function=";
inline constexpr std::string_view kParameterTag = "<parameter=";

// What a parameter's value may be, by its schema. kTextOrNull: `null` is no text.
enum class ParameterType { kText, kTextOrNull, kJson };
// By name; those that are not there are kText.
using ParameterTypes = std::map<std::string, ParameterType, std::less<>>;
using ToolParameterTypes = std::map<std::string, ParameterTypes, std::less<>>;  // by tool

class TaggedCallScanner final : public CallScanner {
 public:
  // `names`: what may be called; null: anything. Both must outlive the scanner.
  TaggedCallScanner(const std::vector<std::string>* names, const ToolParameterTypes& types)
      : names_(names), types_(types) {}

  void Finish(std::string* arguments) override;

 private:
  enum class At { kBegin, kName, kAfterName, kBetween, kKey, kValue };

  void Take(char c, std::string* arguments) override;
  void TakeName(char c);
  void TakeAfterName(char c, std::string* arguments);
  void TakeBetween(std::string* arguments);
  void TakeValue(std::string* arguments);
  void TellValue(std::string_view value, std::string* arguments);
  void Close(std::string* arguments);

  const std::vector<std::string>* const names_;
  const ToolParameterTypes& types_;
  At at_ = At::kBegin;
  std::string taken_;  // of what is being read
  std::string key_;
  std::set<std::string> told_;  // keys
};

}  // namespace flotilla
