// What a command measured, for people; --json prints the same object.
//
// Threads: any (pure).
#pragma once

#include <string>

#include "boost/json/fwd.hpp"

namespace flotilla {

// One line a figure: a number, "-" where null stands for "not known", or an object of such by name
// ({"p50": 0.2}). No other values.
std::string FiguresTable(const boost::json::object& figures);

}  // namespace flotilla
