// What to say of words on a command line that nobody expected: the flag or command that was
// probably meant, also by the names that other servers give to flags of ours.
//
// Threads: any (pure).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// The candidate that `word` is a slip of the pen from; empty: none is near.
std::string NearestOf(std::string_view word, const std::vector<std::string>& candidates);

// It serves a model, as the programs do whose flags are known here.
bool IsServer(const CLI::App& command);

// What `command` calls a flag of another server's ("--max-model-len"); empty: nothing. May have a
// value behind it ("--device cuda").
std::string_view OurNameOf(const CLI::App& command, std::string_view foreign);

// `extras` are not empty, in the order of the command line.
std::string ExplainExtras(const CLI::App& command, const std::vector<std::string>& extras);

}  // namespace flotilla
