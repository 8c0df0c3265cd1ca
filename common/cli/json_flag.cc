#include "common/cli/json_flag.h"

#include <boost/json/value.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/strict_json.h"

namespace flotilla {

CLI::Validator JsonObjectFlag() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (text.empty()) return {};
        boost::json::value value;
        StrictJsonError error;
        if (!ParseStrictJson(text, &value, &error))
          return absl::StrCat("'", text, "' is not valid JSON: ",
                              error.duplicate_key.empty() ? error.message : "a key stands twice");
        return value.is_object() ? "" : absl::StrCat("'", text, "' is no JSON object: {…}");
      },
      "");
}

}  // namespace flotilla
