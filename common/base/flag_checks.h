// CLI11 validators that flags of several processes share.
//
// Threads: any.
#pragma once

#include <CLI/CLI.hpp>

namespace flotilla {

// Of --cors-allow-origin: '*', or what browsers send as Origin, since nothing else would ever
// match.
CLI::Validator OriginFlag();

// 0 to 65535
CLI::Validator PortFlag();

}  // namespace flotilla
