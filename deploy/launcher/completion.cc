#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "deploy/launcher/reference.h"

namespace flotilla {
namespace {

// What a list of proposals has room for.
std::string Brief(const std::string& help) {
  return help.substr(0, std::min({help.find(". "), help.find("; "), help.find(": ")}));
}

struct Words {
  std::string first, second;  // "bench", "roofline"; most commands have one word
};
Words WordsOf(const CommandInfo& command) {
  const size_t blank = command.name.find(' ');
  if (blank == std::string::npos) return {command.name, ""};
  return {command.name.substr(0, blank), command.name.substr(blank + 1)};
}

struct FirstWord {
  std::string word, help;
  std::vector<std::pair<std::string, std::string>> seconds;  // word, help
};
std::vector<FirstWord> FirstWords(const std::vector<CommandInfo>& commands) {
  std::vector<FirstWord> all;
  for (const CommandInfo& command : commands) {
    const Words words = WordsOf(command);
    auto at = std::find_if(all.begin(), all.end(),
                           [&](const FirstWord& f) { return f.word == words.first; });
    if (at == all.end()) {
      const std::string help = words.second.empty() ? Brief(command.help) : "Measures";
      at = all.insert(all.end(), {words.first, help, {}});
    }
    if (!words.second.empty()) at->seconds.emplace_back(words.second, Brief(command.help));
  }
  return all;
}

std::vector<std::string> NamesOf(const std::vector<FlagInfo>& flags) {
  std::vector<std::string> names = {"--help"};
  for (const FlagInfo& flag : flags)
    if (!flag.IsArgument()) names.push_back(flag.name);
  return names;
}

template <typename Range>
std::string SecondWords(const Range& seconds) {
  return absl::StrJoin(seconds, " ",
                       [](std::string* out, const auto& second) { out->append(second.first); });
}

// --- bash -------------------------------------------------------------------------------------

constexpr char kBashHead[] =
    R"(# Completion of flotilla for bash: source <(flotilla completion bash)
_flotilla() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]-} words=
  COMPREPLY=()
  # bash takes --flag=value for three words.
  [[ $cur == = ]] && cur=
  [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD - 2]}
)";
constexpr char kBashTail[] = R"(  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _flotilla flotilla
)";

std::string BashScript(const std::vector<CommandInfo>& commands) {
  std::string script = kBashHead;
  const std::vector<FirstWord> first_words = FirstWords(commands);
  absl::StrAppend(&script, "  if ((COMP_CWORD == 1)); then\n    words='");
  for (const FirstWord& first : first_words) absl::StrAppend(&script, first.word, " ");
  absl::StrAppend(&script,
                  "--help --version'\n  else\n    case \"$command ${COMP_WORDS[2]-}\" in\n");
  for (const CommandInfo& command : commands) {
    if (!WordsOf(command).second.empty())
      absl::StrAppend(&script, "      '", command.name, "') command='", command.name, "' ;;\n");
  }
  absl::StrAppend(&script, "    esac\n    case \"$command $prev\" in\n");
  std::vector<std::string> free;  // may be anything: bash proposes files
  for (const CommandInfo& command : commands) {
    for (const FlagInfo& flag : command.flags) {
      if (flag.IsArgument() || flag.takes.empty()) continue;
      const std::string words = StrCat("'", command.name, " ", flag.name, "'");
      if (flag.choices.empty())
        free.push_back(words);
      else
        absl::StrAppend(&script, "      ", words, ") words='", absl::StrJoin(flag.choices, " "),
                        "' ;;\n");
    }
  }
  absl::StrAppend(&script, "      ", absl::StrJoin(free, " | \\\n        "), ") ;;\n");
  absl::StrAppend(&script, "      *) case $command in\n");
  for (const FirstWord& first : first_words) {
    if (!first.seconds.empty())
      absl::StrAppend(&script, "        ", first.word, ") ((COMP_CWORD == 2)) && words='",
                      SecondWords(first.seconds), " ' ;;&\n");
  }
  for (const CommandInfo& command : commands) {
    absl::StrAppend(&script, "        ", ShellQuoted(command.name), ") words+='",
                    absl::StrJoin(NamesOf(command.flags), " "), "' ;;\n");
  }
  return StrCat(script, "      esac ;;\n    esac\n  fi\n", kBashTail);
}

// --- zsh --------------------------------------------------------------------------------------

std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshFlag(const FlagInfo& flag) {
  if (flag.IsArgument()) return ShellQuoted(StrCat("*:", ZshText(flag.name), ":_files"));
  std::string spec = StrCat(flag.list ? "*" : "", flag.name, flag.takes.empty() ? "" : "=", "[",
                            ZshText(Brief(flag.help)), "]");
  if (!flag.takes.empty())
    absl::StrAppend(
        &spec, ":", ZshText(flag.takes), ":",
        flag.choices.empty() ? "_files" : StrCat("(", absl::StrJoin(flag.choices, " "), ")"));
  return ShellQuoted(spec);
}

std::string ZshScript(const std::vector<CommandInfo>& commands) {
  std::string script =
      "#compdef flotilla\n# Completion of flotilla for zsh: source <(flotilla completion zsh)\n"
      "_flotilla() {\n  local -a names\n  local command=$words[2]\n"
      "  if ((CURRENT == 2)); then\n    names=(\n";
  const std::vector<FirstWord> first_words = FirstWords(commands);
  for (const FirstWord& first : first_words)
    absl::StrAppend(&script, "      ", ShellQuoted(StrCat(first.word, ":", ZshText(first.help))),
                    "\n");
  absl::StrAppend(&script, "    )\n    _describe command names\n    return\n  fi\n");
  for (const FirstWord& first : first_words) {
    if (first.seconds.empty()) continue;
    absl::StrAppend(&script, "  if [[ $command == ", first.word,
                    " ]] && ((CURRENT == 3)); then\n    names=(\n");
    for (const auto& [word, help] : first.seconds)
      absl::StrAppend(&script, "      ", ShellQuoted(StrCat(word, ":", ZshText(help))), "\n");
    absl::StrAppend(&script, "    )\n    _describe command names\n  fi\n");
  }
  absl::StrAppend(&script, "  shift words\n  ((CURRENT--))\n  case \"$command $words[2]\" in\n");
  for (const CommandInfo& command : commands) {
    if (!WordsOf(command).second.empty())
      absl::StrAppend(&script, "    ", ShellQuoted(command.name),
                      ") command=", ShellQuoted(command.name), "; shift words; ((CURRENT--)) ;;\n");
  }
  absl::StrAppend(&script, "  esac\n  case $command in\n");
  for (const CommandInfo& command : commands) {
    absl::StrAppend(&script, "    ", ShellQuoted(command.name),
                    ")\n      _arguments '--help[Help]'");
    for (const FlagInfo& flag : command.flags)
      absl::StrAppend(&script, " \\\n        ", ZshFlag(flag));
    absl::StrAppend(&script, " ;;\n");
  }
  return StrCat(script,
                "  esac\n}\nif [[ $funcstack[1] == _flotilla ]]; then\n  _flotilla \"$@\"\nelse\n"
                "  compdef _flotilla flotilla\nfi\n");
}

// --- fish -------------------------------------------------------------------------------------

std::string FishQuoted(const std::string& text) {
  return StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// When a command's flags are proposed: it is there, and no longer one that begins with its words.
std::string FishCondition(const CommandInfo& command, const std::vector<FirstWord>& first_words) {
  const Words words = WordsOf(command);
  std::string condition = StrCat("__fish_seen_subcommand_from ", words.first);
  if (!words.second.empty())
    return StrCat(condition, "; and __fish_seen_subcommand_from ", words.second);
  for (const FirstWord& first : first_words) {
    if (first.word == words.first && !first.seconds.empty())
      absl::StrAppend(&condition, "; and not __fish_seen_subcommand_from ",
                      SecondWords(first.seconds));
  }
  return condition;
}

std::string FishFlag(const FlagInfo& flag) {
  std::string line = StrCat(" -l ", flag.name.substr(2), " -d ", FishQuoted(Brief(flag.help)));
  if (!flag.short_name.empty()) absl::StrAppend(&line, " -s ", flag.short_name.substr(1));
  if (!flag.choices.empty())
    absl::StrAppend(&line, " -x -a ", FishQuoted(absl::StrJoin(flag.choices, " ")));
  else if (!flag.takes.empty())
    absl::StrAppend(&line, " -r");
  return line;
}

std::string FishScript(const std::vector<CommandInfo>& commands) {
  std::string script = "# Completion of flotilla for fish: flotilla completion fish | source\n";
  const std::vector<FirstWord> first_words = FirstWords(commands);
  for (const FirstWord& first : first_words) {
    absl::StrAppend(&script, "complete -c flotilla -f -n __fish_use_subcommand -a ", first.word,
                    " -d ", FishQuoted(first.help), "\n");
    for (const auto& [word, help] : first.seconds)
      absl::StrAppend(&script, "complete -c flotilla -f -n '__fish_seen_subcommand_from ",
                      first.word, "; and not __fish_seen_subcommand_from ",
                      SecondWords(first.seconds), "' -a ", word, " -d ", FishQuoted(help), "\n");
  }
  for (const CommandInfo& command : commands) {
    const std::string condition = FishQuoted(FishCondition(command, first_words));
    for (const FlagInfo& flag : command.flags) {
      if (!flag.IsArgument())
        absl::StrAppend(&script, "complete -c flotilla -n ", condition, FishFlag(flag), "\n");
    }
  }
  return script;
}

}  // namespace

std::string ShellQuoted(const std::string& text) {
  return StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string CompletionScript(std::string_view shell, const std::vector<CommandInfo>& commands) {
  if (shell == "bash") return BashScript(commands);
  return shell == "zsh" ? ZshScript(commands) : FishScript(commands);
}

}  // namespace flotilla
