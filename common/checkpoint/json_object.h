// An object of one of a model folder's JSON files, with the path to it for messages. Private to
// common/checkpoint and common/text.
//
// Threads: const. Ownership: the document must live. Errors: InvalidArgument "config.json: <path>
// must be …", NotFound for a missing key.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla::internal {

class JsonObject {
 public:
  // `path`: "config.json: " or "config.json: rope_parameters.".
  JsonObject(const boost::json::object* object, std::string path)
      : object_(object), path_(std::move(path)) {}

  // Is there, and not null.
  bool Has(std::string_view key) const;
  // Is there, maybe null.
  bool Contains(std::string_view key) const;
  StatusOr<uint64_t> Uint(std::string_view key) const;
  StatusOr<double> Float(std::string_view key) const;
  StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  StatusOr<std::string_view> String(std::string_view key) const;
  StatusOr<JsonObject> Object(std::string_view key) const;
  StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;
  StatusOr<std::vector<double>> Floats(std::string_view key) const;
  Status Error(std::string_view key, std::string_view problem) const;

  const boost::json::object& value() const { return *object_; }

 private:
  StatusOr<const boost::json::value*> Find(std::string_view key) const;
  template <typename T, typename Read>
  StatusOr<std::vector<T>> Elements(std::string_view key, std::string_view of,
                                    const Read& read) const;

  const boost::json::object* object_;
  std::string path_;
};

// The whole of a file that holds an object, at most max_bytes of it.
StatusOr<boost::json::value> ParseJsonObject(std::string_view file, std::string_view text,
                                             size_t max_bytes);

}  // namespace flotilla::internal
