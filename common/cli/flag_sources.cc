#include "common/cli/flag_sources.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/flag_list.h"
#include "common/base/log.h"
#include "common/cli/flag_hints.h"

namespace flotilla {
namespace {

constexpr char kConfigFlag[] = "--config";
constexpr char kLogFormatFlag[] = "--log-format";
constexpr char kVariablePrefix[] = "FLOTILLA_";
constexpr char kClientsKey[] = "FLOTILLA_API_KEY";  // of `ask` and others, wherever it is set

bool IsList(const CLI::Option& option) { return option.get_items_expected_max() > 1; }
bool IsSwitch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// Those that a file or a variable may set: visible, with a name, and not about the command line.
std::vector<const CLI::Option*> SettableFlags(const CLI::App& command) {
  std::vector<const CLI::Option*> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name != "help" && name != "version" && name != "config") flags.push_back(option);
  }
  return flags;
}

std::string NameOf(const CLI::Option& option) {
  return absl::StrCat("--", option.get_lnames().front());
}

// The value of a flag on a command line, or "" if it only stands there; nullopt: it does not.
std::optional<std::string> ValueOnLine(const std::vector<std::string>& arguments,
                                       const std::string& flag) {
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] == flag) return i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (arguments[i].starts_with(flag + "=")) return arguments[i].substr(flag.size() + 1);
  }
  return std::nullopt;
}

bool IsOnLine(const std::vector<std::string>& arguments, const CLI::Option& option) {
  const auto on_line = [&](const std::string& dashes, const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return ValueOnLine(arguments, dashes + name).has_value();
    });
  };
  return on_line("--", option.get_lnames()) || on_line("-", option.get_snames());
}

bool IsKubernetesAddress(const std::string& variable, std::string_view value) {
  return variable.ends_with("PORT") && (value.starts_with("tcp://") || value.starts_with("udp://"));
}

// Null if it is not set, or empty, as an unset one becomes in many a script and manifest.
const char* Variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::vector<FoundFlag> FromVariable(const CLI::Option& option) {
  const std::string flag = NameOf(option);
  const std::string variable = VariableOfFlag(flag);
  const char* value = Variable(variable);
  if (value == nullptr || IsKubernetesAddress(variable, value)) return {};
  if (!IsList(option)) return {{flag, value, variable}};
  std::vector<FoundFlag> found;
  for (std::string item : std::vector<std::string>(absl::StrSplit(value, ','))) {
    absl::StripAsciiWhitespace(&item);
    if (!item.empty()) found.push_back({flag, std::move(item), variable});
  }
  return found;
}

// --- The file ---------------------------------------------------------------------------------

struct FileEntry {
  YAML::Node value;
  std::string origin;
};
using FileEntries = std::map<std::string, FileEntry>;  // by the flag's name without dashes

std::string PlaceIn(const std::string& path, const YAML::Mark& mark) {
  return mark.is_null() ? path : absl::StrCat(path, ":", mark.line + 1);
}

// Throws YAML::Exception.
StatusOr<FileEntries> ReadEntries(const std::string& path, const std::string& text) {
  const std::vector<YAML::Node> documents = YAML::LoadAll(text);
  FileEntries entries;
  if (documents.empty() || documents[0].IsNull()) return entries;
  if (documents.size() > 1 || !documents[0].IsMap()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": one list of flags is wanted, a line each, such as port: 8000"));
  }
  for (const auto& pair : documents[0]) {
    const std::string origin = PlaceIn(path, pair.first.Mark());
    if (!pair.first.IsScalar())
      return absl::InvalidArgumentError(absl::StrCat(origin, ": the name of a flag is wanted"));
    const std::string& name = pair.first.Scalar();
    if (!entries.emplace(name, FileEntry{pair.second, origin}).second)
      return absl::InvalidArgumentError(absl::StrCat(origin, ": '", name, "' is there twice"));
  }
  return entries;
}

StatusOr<FileEntries> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file.is_open() || (text << file.rdbuf()).bad())
    return absl::NotFoundError(absl::StrCat("--config: can't read ", path));
  try {
    return ReadEntries(path, text.str());
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceIn(path, error.mark), ": ", error.msg));
  }
}

StatusOr<std::vector<FoundFlag>> FromEntry(const CLI::Option& option, const FileEntry& entry) {
  const std::string flag = NameOf(option);
  if (entry.value.IsScalar()) {
    if (IsSwitch(option) && entry.value.Scalar().empty())
      return absl::InvalidArgumentError(
          absl::StrCat(entry.origin, ": ", flag, " takes true or false"));
    return std::vector<FoundFlag>{{flag, entry.value.Scalar(), entry.origin}};
  }
  std::vector<FoundFlag> found;
  if (entry.value.IsSequence() && IsList(option)) {
    for (const YAML::Node& item : entry.value) {
      if (!item.IsScalar())
        return absl::InvalidArgumentError(
            absl::StrCat(entry.origin, ": ", flag, " takes a list of plain values"));
      found.push_back({flag, item.Scalar(), entry.origin});
    }
    return found;
  }
  return absl::InvalidArgumentError(absl::StrCat(entry.origin, ": ", flag, " takes ",
                                                 IsList(option) ? "a list" : "one value", ", not ",
                                                 entry.value.IsNull() ? "nothing" : "this"));
}

Status CheckNames(const CLI::App& command, const FileEntries& entries) {
  std::set<std::string> known;
  for (const CLI::Option* option : SettableFlags(command))
    known.insert(option->get_lnames().front());
  for (const auto& [name, entry] : entries) {
    if (!known.contains(name)) {
      const std::string flag = absl::StrCat("--", name);
      const std::string why = ExplainExtras(command, {flag});
      if (command.get_option_no_throw(flag) == nullptr && why.find(';') != std::string::npos)
        return absl::InvalidArgumentError(absl::StrCat(entry.origin, ": ", why));
      return absl::InvalidArgumentError(
          absl::StrCat(entry.origin, ": ", command.get_name(), " has no flag --", name,
                       " that a file may set; its --help lists them"));
    }
  }
  return OkStatus();
}

// MAX_MODEL_LEN → CONTEXT_LENGTH; empty: no other server has such a flag, or ours is set.
std::string OursOf(const CLI::App& command, const std::string& variable) {
  const std::string flag =
      absl::StrCat("--", absl::StrReplaceAll(absl::AsciiStrToLower(variable), {{"_", "-"}}));
  const std::string_view ours = OurNameOf(command, flag);
  if (ours.empty() || ours.find(' ') != std::string_view::npos) return {};
  if (command.get_option(std::string(ours))->count() > 0) return {};
  return VariableOfFlag(std::string(ours)).substr(std::string_view(kVariablePrefix).size());
}

// What was meant by variables whose names are a slip of the pen from one of ours: nobody else would
// ever say that they set nothing.
void WarnOfSlips(const CLI::App& app, const CLI::App& command) {
  const size_t prefix = std::string_view(kVariablePrefix).size();
  std::vector<std::string> settable;  // without the prefix, which all have
  std::set<std::string> known = {VariableOfFlag(kConfigFlag), kClientsKey};
  for (const CLI::Option* option : SettableFlags(command)) {
    known.insert(VariableOfFlag(NameOf(*option)));
    settable.push_back(VariableOfFlag(NameOf(*option)).substr(prefix));
  }
  for (const CLI::App* other : app.get_subcommands({})) {
    for (const CLI::Option* option : SettableFlags(*other))
      known.insert(VariableOfFlag(NameOf(*option)));
  }
  LogOptions log{.process = app.get_name()};
  const CLI::Option* format = command.get_option_no_throw(kLogFormatFlag);
  if (format != nullptr && !format->results().empty()) log.format = format->results().back();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with(kVariablePrefix)) continue;
    if (Variable(name) == nullptr || IsKubernetesAddress(name, Variable(name))) continue;
    const std::string own = name.substr(prefix);
    if (own.empty() || known.contains(name)) continue;
    std::string meant = OursOf(command, own);
    if (meant.empty()) {
      meant = NearestOf(own, settable);
      if (meant.empty() || meant[0] != own[0]) continue;
    }
    WriteToStderr(FormatLogLine(
        log, spdlog::level::warn,
        absl::StrCat(name, " sets no flag; was ", kVariablePrefix, meant, " meant?")));
  }
}

// --- Parsing ----------------------------------------------------------------------------------

[[noreturn]] void ExitWith(const std::string& message) {
  std::fprintf(stderr, "%s\nRun with --help for more information.\n", message.c_str());
  std::exit(2);
}

// CLI11 names the flag; whose it was is known here.
std::string WithOrigin(const std::string& message, const std::vector<FoundFlag>& found) {
  const FoundFlag* best = nullptr;
  for (const FoundFlag& flag : found) {
    const bool longer = best == nullptr || flag.flag.size() > best->flag.size();
    if (longer && message.find(flag.flag) != std::string::npos) best = &flag;
  }
  return best == nullptr ? message : absl::StrCat(message, " (from ", best->origin, ")");
}

}  // namespace

std::string VariableOfFlag(const std::string& flag) {
  return absl::StrCat(kVariablePrefix,
                      absl::AsciiStrToUpper(absl::StrReplaceAll(
                          flag.substr(flag.find_first_not_of('-')), {{"-", "_"}})));
}

void AddConfigFlag(CLI::App* command) {
  // Read before the rest is parsed; the value that CLI11 gets is of no use.
  command->add_option(
      kConfigFlag,
      "YAML file with flags that the command line leaves out, such as port: 8000. Variables such "
      "as FLOTILLA_PORT come before it. none: neither of the two");
}

void AppendFlag(const std::string& flag, const std::string& value,
                std::vector<std::string>* arguments) {
  if (value.empty()) {
    arguments->insert(arguments->end(), {flag, value});
  } else {
    arguments->push_back(absl::StrCat(flag, "=", value));
  }
}

StatusOr<std::vector<FoundFlag>> FindLeftOutFlags(const CLI::App& command,
                                                  const std::vector<std::string>& arguments) {
  std::vector<FoundFlag> found;
  std::optional<std::string> path = ValueOnLine(arguments, kConfigFlag);
  if (const char* variable = Variable("FLOTILLA_CONFIG"); !path && variable != nullptr)
    path = variable;
  if (path == "none") return found;
  FileEntries entries;
  if (path) {
    ASSIGN_OR_RETURN(entries, ReadFile(*path));
    RETURN_IF_ERROR(CheckNames(command, entries));
  }
  for (const CLI::Option* option : SettableFlags(command)) {
    if (IsOnLine(arguments, *option)) continue;
    std::vector<FoundFlag> values = FromVariable(*option);
    const auto entry = entries.find(option->get_lnames().front());
    if (values.empty() && entry != entries.end()) {
      ASSIGN_OR_RETURN(values, FromEntry(*option, entry->second));
    }
    found.insert(found.end(), std::make_move_iterator(values.begin()),
                 std::make_move_iterator(values.end()));
  }
  return found;
}

void ParseWithSourcesOrExit(CLI::App* app, int argc, char** argv) {
  PrintFlagsIfAsked(app, argc, argv);
  const std::vector<std::string> given(argv + 1, argv + argc);
  std::vector<std::string> arguments = given;
  CLI::App* command = arguments.empty() ? app : CommandOf(app, arguments[0]);
  // llama.cpp's, which CLI11 takes for -h and -f.
  const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
  if (IsServer(*command) && std::find(arguments.begin(), options_end, "-hf") != options_end)
    ExitWith(ExplainExtras(*command, {"-hf"}));
  std::vector<FoundFlag> found;
  const bool asks_for_help = ValueOnLine(arguments, "--help") || ValueOnLine(arguments, "-h");
  if (!asks_for_help && command->get_option_no_throw(kConfigFlag) != nullptr) {
    StatusOr<std::vector<FoundFlag>> left_out = FindLeftOutFlags(*command, arguments);
    if (!left_out.ok()) ExitWith(std::string(left_out.status().message()));
    found = *std::move(left_out);
  }
  const auto behind_command = arguments.begin() + (command == app ? 0 : 1);
  std::vector<std::string> added;
  for (const FoundFlag& flag : found) AppendFlag(flag.flag, flag.value, &added);
  arguments.insert(behind_command, added.begin(), added.end());
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the end
  try {
    app->parse(std::move(arguments));
  } catch (const CLI::Success& done) {
    std::exit(app->exit(done));
  } catch (const CLI::ParseError& error) {
    // What is missing is said first, and was perhaps given under another name.
    const std::vector<std::string> extras = command->remaining();
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    if (!extras.empty() &&
        (code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError))
      ExitWith(ExplainExtras(*command, extras));
    ExitWith(WithOrigin(error.what(), found));
  }
  if (command->get_option_no_throw(kConfigFlag) != nullptr &&
      ValueOnLine(given, kConfigFlag) != "none")
    WarnOfSlips(*app, *command);
}

}  // namespace flotilla
