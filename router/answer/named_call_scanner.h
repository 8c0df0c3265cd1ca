// A call as newer Mistral models write it behind their tag, from pieces of its text: f[ARGS]{…},
// f[CALL_ID]123456789[ARGS]{…} or f{…}. Its id is not passed on: calls get ours.
//
// Threads: one at a time. Errors: kFailed, if it is written otherwise up to its arguments. Source:
// the models' chat templates.
#pragma once

#include <string>

#include "router/answer/call_scanner.h"

namespace flotilla {

// What names of tools are made of.
bool IsToolNameCharacter(char c);

class NamedCallScanner final : public CallScanner {
 private:
  enum class At { kName, kTag, kId, kBeforeArguments, kArguments };

  void Take(char c, std::string* arguments) override;
  bool TakeHead(char c);
  bool TakeTag(char c);

  At at_ = At::kName;
  std::string tag_;  // so far
  JsonEnd end_;      // of the arguments
};

}  // namespace flotilla
