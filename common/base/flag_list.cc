#include "common/base/flag_list.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace flotilla {
namespace {

constexpr size_t kFlagFields = 8;

// "TEXT:{a,b}" → takes "TEXT", choices a and b; "UINT:UINT in [1 - 64]" → takes "UINT in [1 - 64]".
void SetType(const std::string& type, FlagInfo* info) {
  const size_t colon = type.find(':');
  info->takes = type.substr(0, colon);
  if (colon == std::string::npos) return;
  std::string check = type.substr(colon + 1);
  if (!check.starts_with('{') || !check.ends_with('}')) {
    info->takes = std::move(check);
    return;
  }
  info->choices = absl::StrSplit(check.substr(1, check.size() - 2), ',');
}

FlagInfo InfoOf(const CLI::Option& option) {
  FlagInfo info;
  const bool named = !option.get_lnames().empty();
  info.name = named ? absl::StrCat("--", option.get_lnames().front()) : option.get_name(true);
  if (!option.get_snames().empty())
    info.short_name = absl::StrCat("-", option.get_snames().front());
  const bool is_switch = option.get_items_expected_max() == 0;
  if (!is_switch) SetType(option.get_type_name(), &info);
  if (!is_switch) info.default_value = option.get_default_str();
  info.help = option.get_description();
  info.required = option.get_required();
  info.list = option.get_items_expected_max() > 1;
  return info;
}

}  // namespace

std::vector<FlagInfo> ListFlags(const CLI::App& command) {
  std::vector<FlagInfo> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option != command.get_help_ptr() && !option->get_group().empty())
      flags.push_back(InfoOf(*option));
  }
  return flags;
}

std::string FlagLines(const std::vector<FlagInfo>& flags) {
  std::string text;
  for (const FlagInfo& flag : flags) {
    absl::StrAppend(&text, flag.name, "\t", flag.short_name, "\t", flag.takes, "\t",
                    absl::StrJoin(flag.choices, ","), "\t", flag.default_value, "\t");
    absl::StrAppend(&text, flag.required ? "required" : "", "\t", flag.list ? "list" : "", "\t",
                    flag.help, "\n");
  }
  return text;
}

StatusOr<std::vector<FlagInfo>> ParseFlagLines(std::string_view text) {
  std::vector<FlagInfo> flags;
  const std::string whole(text);
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(whole, '\n'))) {
    if (line.empty()) continue;
    std::vector<std::string> fields = absl::StrSplit(line, '\t');
    if (fields.size() != kFlagFields)
      return absl::InvalidArgumentError(absl::StrCat("'", line, "' is no line about a flag"));
    FlagInfo& flag = flags.emplace_back();
    flag.name = std::move(fields[0]);
    flag.short_name = std::move(fields[1]);
    flag.takes = std::move(fields[2]);
    if (!fields[3].empty()) flag.choices = absl::StrSplit(fields[3], ',');
    flag.default_value = std::move(fields[4]);
    flag.required = !fields[5].empty();
    flag.list = !fields[6].empty();
    flag.help = std::move(fields[7]);
  }
  return flags;
}

CLI::App* CommandOf(CLI::App* app, std::string_view first_argument) {
  for (CLI::App* command : app->get_subcommands([](CLI::App*) { return true; }))
    if (command->get_name() == first_argument) return command;
  return app;
}

void PrintFlagsIfAsked(CLI::App* app, int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[argc - 1]) != "--list-flags") return;
  std::fputs(FlagLines(ListFlags(*CommandOf(app, argv[1]))).c_str(), stdout);
  std::exit(0);
}

}  // namespace flotilla
