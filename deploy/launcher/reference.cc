#include "deploy/launcher/reference.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <utility>

#include "deploy/launcher/programs.h"

namespace flotilla {
namespace {

StatusOr<std::vector<FlagInfo>> AskForFlags(const OtherProgram& program) {
  std::string line = ShellQuoted(StrCat(OwnBinDir(), "/", program.program));
  if (program.first != nullptr) absl::StrAppend(&line, " ", program.first);
  absl::StrAppend(&line, " --list-flags");
  std::FILE* pipe = popen(line.c_str(), "re");
  if (pipe == nullptr) return absl::UnavailableError(StrCat("can't run ", line));
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  if (pclose(pipe) != 0) return absl::UnavailableError(StrCat("can't ask ", line));
  return ParseFlagLines(text);
}

}  // namespace

StatusOr<std::vector<CommandInfo>> ListCommands(const CLI::App& app) {
  std::vector<CommandInfo> commands;
  for (const CLI::App* own : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = own->get_name();
    const char* const words[] = {name.c_str()};
    if (FindProgram(words) == nullptr && name != "bench")
      commands.push_back({name, own->get_description(), ListFlags(*own)});
  }
  for (const OtherProgram& program : OtherPrograms()) {
    ASSIGN_OR_RETURN(std::vector<FlagInfo> flags, AskForFlags(program));
    commands.push_back({program.command, program.help, std::move(flags)});
  }
  return commands;
}

}  // namespace flotilla
