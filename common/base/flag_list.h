// A command's flags for programs to read: completion, manual pages and the README's tables are made
// of what --help says. Every program of ours prints the list when --list-flags is its last
// argument.
//
// Threads: any; pure but for PrintFlagsIfAsked. Errors: InvalidArgument.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct FlagInfo {
  std::string name;                  // "--port", or "FILE" for an argument that has no name
  std::string short_name;            // "-h"; most have none
  std::string takes;                 // "UINT in [1 - 64]", "TEXT"; empty: a switch
  std::vector<std::string> choices;  // if it takes one of a few words
  std::string default_value;         // empty: none, or the help says it
  std::string help;
  bool required = false;
  bool list = false;  // may be given several times

  bool operator==(const FlagInfo&) const = default;
  bool IsArgument() const { return !name.starts_with('-'); }
};

// Those that --help shows, in its order, but for --help itself.
std::vector<FlagInfo> ListFlags(const CLI::App& command);

// A line a flag, its fields between tabs; and back.
std::string FlagLines(const std::vector<FlagInfo>& flags);
StatusOr<std::vector<FlagInfo>> ParseFlagLines(std::string_view text);

// The subcommand of that name, or `app`.
CLI::App* CommandOf(CLI::App* app, std::string_view first_argument);

// --list-flags: prints and exits.
void PrintFlagsIfAsked(CLI::App* app, int argc, char** argv);

}  // namespace flotilla
