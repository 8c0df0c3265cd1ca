#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/cli/flag_sources.h"
#include "deploy/launcher/reference.h"

namespace flotilla {
namespace {

// Text that the formatter takes as it is.
std::string Roff(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

std::string Header(const std::string& page) {
  return StrCat(".TH \"", absl::AsciiStrToUpper(page),
                "\" \"1\" \"\" \"flotilla " FLOTILLA_VERSION "\" \"Flotilla\"\n");
}

std::string Entry(const FlagInfo& flag) {
  std::string entry = ".TP\n";
  const std::string name =
      flag.short_name.empty() ? flag.name : StrCat(flag.short_name, ", ", flag.name);
  const std::string takes = flag.choices.empty() ? flag.takes : absl::StrJoin(flag.choices, "|");
  if (flag.IsArgument() || takes.empty())
    absl::StrAppend(&entry, ".B ", Roff(name), "\n");
  else
    absl::StrAppend(&entry, ".BI \"", Roff(name), " \" \"", Roff(takes), "\"\n");
  absl::StrAppend(&entry, Roff(flag.help), "\n");
  if (!flag.default_value.empty())
    absl::StrAppend(&entry, ".br\nDefault: ", Roff(flag.default_value), "\n");
  if (flag.required) absl::StrAppend(&entry, ".br\nRequired.\n");
  if (flag.list && !flag.IsArgument())
    absl::StrAppend(&entry, ".br\nMay be given several times.\n");
  return entry;
}

std::string Section(const char* title, const std::vector<FlagInfo>& flags, bool arguments) {
  std::string entries;
  for (const FlagInfo& flag : flags)
    if (flag.IsArgument() == arguments) entries += Entry(flag);
  return entries.empty() ? "" : StrCat(".SH ", title, "\n", entries);
}

std::string Synopsis(const CommandInfo& command) {
  std::string line = StrCat(".B ", Roff(StrCat("flotilla ", command.name)), "\n[OPTIONS]");
  for (const FlagInfo& flag : command.flags) {
    if (flag.IsArgument())
      absl::StrAppend(&line, " ", flag.required ? "" : "[", flag.name, flag.list ? "..." : "",
                      flag.required ? "" : "]");
  }
  return line + "\n";
}

}  // namespace

std::string ManPageName(const CommandInfo& command) {
  return StrCat("flotilla-", absl::StrReplaceAll(command.name, {{" ", "-"}}));
}

std::string ManPage(const CommandInfo& command) {
  std::string page = Header(ManPageName(command));
  absl::StrAppend(&page, ".SH NAME\n", Roff(ManPageName(command)), " \\- ", Roff(command.help),
                  "\n", ".SH SYNOPSIS\n", Synopsis(command));
  absl::StrAppend(&page, Section("ARGUMENTS", command.flags, true),
                  Section("OPTIONS", command.flags, false));
  const bool has_sources =
      std::any_of(command.flags.begin(), command.flags.end(),
                  [](const FlagInfo& flag) { return flag.name == "--config"; });
  if (has_sources) {
    absl::StrAppend(
        &page, ".SH ENVIRONMENT\nA flag that the command line leaves out is taken from ",
        "a variable, ", Roff(VariableOfFlag("--page-size")), " for ", Roff("--page-size"),
        " and so on, then from the file of ", Roff("--config"), ".\n");
  }
  return page + ".SH SEE ALSO\n.BR flotilla (1)\n";
}

std::string ManOverview(const std::vector<CommandInfo>& commands, std::string_view lesson) {
  std::string page = Header("flotilla");
  absl::StrAppend(&page, ".SH NAME\nflotilla \\- serves large language models from a cluster of ",
                  "processes\n.SH SYNOPSIS\n.B flotilla\nCOMMAND [OPTIONS]\n.SH COMMANDS\n");
  for (const CommandInfo& command : commands)
    absl::StrAppend(&page, ".TP\n.B ", Roff(command.name), "\n", Roff(command.help), "\n");
  absl::StrAppend(&page, ".SH EXAMPLES\n.EX\n");
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(std::string(lesson), '\n')))
    absl::StrAppend(&page, Roff(line), "\n");
  absl::StrAppend(&page, ".EE\n.SH SEE ALSO\n");
  for (const CommandInfo& command : commands)
    absl::StrAppend(&page, ".BR ", Roff(ManPageName(command)), " (1)",
                    &command == &commands.back() ? "\n" : ",\n");
  return page;
}

}  // namespace flotilla
