// A CLI11 validator of flags that are JSON.
//
// Threads: any.
#pragma once

#include <CLI/CLI.hpp>

namespace flotilla {

// A JSON object, or nothing.
CLI::Validator JsonObjectFlag();

}  // namespace flotilla
