// Whether no value is valid under two of several JSON schemas. Then oneOf says the same as anyOf.
//
// A proof or nothing: "no" only means that it isn't seen. It is seen where types differ, where
// values are listed (const, enum) and differ, and where objects require a key whose listed values
// differ: a union with a discriminator. $ref is followed as xgrammar does, from the root through
// names.
//
// Threads: one at a time. Errors: none.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace flotilla {

class DisjointSchemas {
 public:
  // `root`: where references begin. It must outlive this.
  explicit DisjointSchemas(const boost::json::value& root) : root_(root) {}

  bool AreDisjoint(const boost::json::array& schemas);

 private:
  using Values = std::set<std::string>;  // one text for all ways to write a value
  // What is known of the values that a schema accepts.
  struct Shape {
    std::set<std::string> types;           // every value is of one of these; no "integer"
    std::optional<Values> values;          // every value is one of these
    std::map<std::string, Values> listed;  // each object has these keys with one of these values
  };

  const boost::json::object* Resolve(const boost::json::value& schema);
  std::optional<Values> Listed(const boost::json::object& schema);
  std::optional<Shape> ShapeOf(const boost::json::value& schema);
  bool AreDisjoint(const Shape& a, const Shape& b);
  // Common to none. Also false if looking takes too long.
  bool ShareNothing(const std::set<std::string>& a, const std::set<std::string>& b);
  bool Spend(size_t steps);

  const boost::json::value& root_;
  size_t steps_left_ = 200'000;  // some 50 ms: schemas come from anybody
};

}  // namespace flotilla
