// Flags that a person's command line leaves out: from variables of the environment and from a YAML
// file. What is found is put on the command line, so it is checked and explained as if typed there.
//
//   first    the command line            --kv-cache-memory 2GiB
//   then     a variable                  FLOTILLA_KV_CACHE_MEMORY=2GiB   (lists: with commas)
//   then     the file of --config        kv-cache-memory: 2GiB           (lists: YAML's)
//   last     the default
//
// Threads: any, while nobody sets variables. Errors: InvalidArgument, NotFound (the file), each
// with the file's line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

// "--kv-cache-memory" → "FLOTILLA_KV_CACHE_MEMORY"
std::string VariableOfFlag(const std::string& flag);

// Gives `command` a --config, by which the functions below know that it has sources. --config none:
// neither variables nor a file, for processes that are started by others of ours.
void AddConfigFlag(CLI::App* command);

// The words of a flag that is no switch, or has a value. (CLI11 takes "--flag=" for a flag whose
// value is the next word.)
void AppendFlag(const std::string& flag, const std::string& value,
                std::vector<std::string>* arguments);

struct FoundFlag {
  std::string flag;    // "--port"
  std::string value;   // as written; a switch has "true" or "false"
  std::string origin;  // "FLOTILLA_PORT", "flotilla.yaml:3"
};
// Of the flags of `command` that are not in `arguments`. A list has an element for each value.
//
// A variable FLOTILLA_…PORT that holds tcp://… or udp://… is Kubernetes' about a Service of that
// name, not ours: it is not there. Nor is a variable that is empty.
StatusOr<std::vector<FoundFlag>> FindLeftOutFlags(const CLI::App& command,
                                                  const std::vector<std::string>& arguments);

// ParseOrExit (common/base/flags.h) of `app`, or of the subcommand that the first argument names,
// with what its sources say. An error names the source that it comes from; a variable that sets
// nothing but is nearly one of a flag is warned of.
void ParseWithSourcesOrExit(CLI::App* app, int argc, char** argv);

}  // namespace flotilla
