// Every command of `flotilla` with its flags, as their --help has them: what completion and manual
// pages are made of.
//
// Threads: the main thread. Errors: Unavailable (a program beside ours can't be asked).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/flag_list.h"
#include "common/base/status.h"

namespace flotilla {

struct CommandInfo {
  std::string name;  // "serve", "bench roofline"
  std::string help;
  std::vector<FlagInfo> flags;
};

// The commands of `app`, then those that are other programs: each of these is asked (--list-flags).
StatusOr<std::vector<CommandInfo>> ListCommands(const CLI::App& app);

// One word for a shell, whatever is in it.
std::string ShellQuoted(const std::string& text);

// A script that completes commands, flags and their values: "bash", "zsh" or "fish".
std::string CompletionScript(std::string_view shell, const std::vector<CommandInfo>& commands);

// In the man(7) language: of one command, or flotilla(1) of all.
std::string ManPageName(const CommandInfo& command);  // "flotilla-bench-roofline"
std::string ManPage(const CommandInfo& command);
std::string ManOverview(const std::vector<CommandInfo>& commands, std::string_view lesson);

}  // namespace flotilla
