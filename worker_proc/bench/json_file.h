// What --json asks for. Threads: any. Errors: InvalidArgument naming the flag.
#pragma once

#include <fstream>
#include <string>

#include "boost/json.hpp"
#include "common/base/status.h"

namespace flotilla::bench {

// Does nothing without a path.
inline Status WriteJsonFile(const std::string& path, const boost::json::object& json) {
  if (path.empty()) return OkStatus();
  std::ofstream out(path);
  out << boost::json::serialize(json) << "\n";
  out.close();
  return out ? OkStatus() : absl::InvalidArgumentError(StrCat("--json: can't write ", path));
}

}  // namespace flotilla::bench
