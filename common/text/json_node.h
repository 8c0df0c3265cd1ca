// A value somewhere in a JSON document, with the path to it for messages. Private to common/text.
//
// Reading a field that is missing gives a node that is null. Threads: const. Ownership: the
// document must live. Errors: InvalidArgument "tokenizer.json: <path> must be …".
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace flotilla::internal {

class JsonNode {
 public:
  JsonNode(const boost::json::value* value, std::string path)
      : value_(value), path_(std::move(path)) {}

  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  const std::string& path() const { return path_; }

  // The field `key` of an object; null if this is none or has no such field.
  JsonNode operator[](std::string_view key) const;
  // The elements of an array, the members of an object.
  StatusOr<const boost::json::array*> Array() const;
  StatusOr<const boost::json::object*> Object() const;
  JsonNode Element(const boost::json::value& value, size_t index) const;

  StatusOr<std::string_view> String() const;
  StatusOr<bool> Bool() const;
  StatusOr<bool> BoolOr(bool fallback) const;  // if it is null
  StatusOr<uint32_t> Uint(uint32_t max) const;

  // What the object says it is; "" if it does not.
  StatusOr<std::string_view> Type() const;

  Status Error(std::string_view problem) const;
  Status MustBe(std::string_view what) const { return Error(StrCat("must be ", what)); }
  // Of a component: "normalizer: the type 'NFKC' is not supported; known: …".
  Status Unsupported(std::string_view type, std::string_view known) const;

 private:
  const boost::json::value* value_;  // null: missing
  std::string path_;
};

}  // namespace flotilla::internal
