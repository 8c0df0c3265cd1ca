#include "common/cli/figures_table.h"

#include "absl/strings/str_format.h"
#include "boost/json.hpp"

namespace flotilla {

std::string FiguresTable(const boost::json::object& figures) {
  std::string text;
  for (const auto& [name, value] : figures) {
    absl::StrAppendFormat(&text, "%-28s", std::string_view(name));
    if (value.is_null()) {
      absl::StrAppendFormat(&text, " %12s", "-");
    } else if (const boost::json::object* parts = value.if_object()) {
      for (const auto& [part, figure] : *parts) {
        absl::StrAppendFormat(&text, " %s ", std::string_view(part));
        if (figure.is_null())
          text += "-";
        else
          absl::StrAppendFormat(&text, "%.4f", figure.to_number<double>());
      }
    } else {
      absl::StrAppendFormat(&text, " %12.6g", value.to_number<double>());
    }
    text += '\n';
  }
  return text;
}

}  // namespace flotilla
