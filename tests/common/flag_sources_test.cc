#include "common/cli/flag_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/base/flags.h"

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A command line with a command `serve`, and what its flags came to be.
class CommandLine {
 public:
  CommandLine() {
    CLI::App* serve = app_.add_subcommand("serve", "Serves");
    serve->add_option("--port", port)->check(CLI::Range(0, 65535));
    serve->add_option("--kv-cache-memory", kv_cache_memory)->transform(BytesFlag());
    serve->add_option("--origin", origins)->allow_extra_args(false);
    serve->add_option("-m,--model", model)->required();
    serve->add_option("question", question);
    serve->add_flag("--disable-overlap", disable_overlap);
    serve->add_option("--bin-dir", hidden)->group("");
    AddConfigFlag(serve);
    app_.add_subcommand("plain", "Has no sources")->add_option("--port", port);
  }

  void Parse(std::vector<std::string> words) {
    words.insert(words.begin(), "flotilla");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    ParseWithSourcesOrExit(&app_, static_cast<int>(argv.size()), argv.data());
  }

  int port = 8000;
  uint64_t kv_cache_memory = 0;
  std::vector<std::string> origins;
  std::string model, question, hidden;
  bool disable_overlap = false;

 private:
  CLI::App app_{"A test", "flotilla"};
};

class FlagSourcesTest : public ::testing::Test {
 protected:
  FlagSourcesTest() {
    for (const char* name :
         {"FLOTILLA_PORT", "FLOTILLA_MODEL", "FLOTILLA_CONFIG", "FLOTILLA_BIN_DIR",
          "FLOTILLA_ORIGIN", "FLOTILLA_DISABLE_OVERLAP", "FLOTILLA_KV_CACHE_MEMORY"})
      Set(name, nullptr);
  }
  ~FlagSourcesTest() override {
    for (const auto& [name, value] : before_) Put(name, value ? value->c_str() : nullptr);
    std::filesystem::remove(path_);
  }

  void Set(const std::string& name, const char* value) {
    const char* before = std::getenv(name.c_str());
    before_.emplace(name, before ? std::optional<std::string>(before) : std::nullopt);
    Put(name, value);
  }
  // The file's path.
  std::string Write(const std::string& yaml) {
    std::ofstream(path_) << yaml;
    return path_;
  }

 private:
  static void Put(const std::string& name, const char* value) {
    value ? setenv(name.c_str(), value, 1) : unsetenv(name.c_str());
  }
  const std::string path_ =
      ::testing::TempDir() + "/flag_sources_" + std::to_string(getpid()) + ".yaml";
  std::map<std::string, std::optional<std::string>> before_;
};
using FlagSourcesDeathTest = FlagSourcesTest;

TEST_F(FlagSourcesTest, ALineComesBeforeAVariableAndThatBeforeTheFile) {
  const std::string file = Write("port: 1\nkv-cache-memory: 1GiB\nmodel: of-the-file\n");
  Set("FLOTILLA_PORT", "2");
  Set("FLOTILLA_KV_CACHE_MEMORY", "2GiB");
  CommandLine line;
  line.Parse({"serve", "--port", "3", "--config", file});
  EXPECT_EQ(line.port, 3);
  EXPECT_EQ(line.kv_cache_memory, 2ull << 30);
  EXPECT_EQ(line.model, "of-the-file");
}

TEST_F(FlagSourcesTest, AShortNameOnTheLineCountsToo) {
  Set("FLOTILLA_MODEL", "of-the-variable");
  CommandLine line;
  line.Parse({"serve", "-m", "mine"});
  EXPECT_EQ(line.model, "mine");
}

TEST_F(FlagSourcesTest, ListsAndSwitches) {
  CommandLine file;
  file.Parse({"serve", "--config",
              Write("model: m\norigin: [https://a, 'https://b,c']\ndisable-overlap: true\n")});
  EXPECT_THAT(file.origins, ElementsAre("https://a", "https://b,c"));
  EXPECT_TRUE(file.disable_overlap);
  Set("FLOTILLA_ORIGIN", "https://a, https://b");
  Set("FLOTILLA_DISABLE_OVERLAP", "false");
  CommandLine variables;
  variables.Parse({"serve", "--model=m"});
  EXPECT_THAT(variables.origins, ElementsAre("https://a", "https://b"));
  EXPECT_FALSE(variables.disable_overlap);
}

TEST_F(FlagSourcesTest, TheFilesPathMayBeAVariable) {
  Set("FLOTILLA_CONFIG", Write("model: m\nport: 7\n").c_str());
  CommandLine line;
  line.Parse({"serve"});
  EXPECT_EQ(line.port, 7);
}

TEST_F(FlagSourcesTest, NoneOfThem) {
  Set("FLOTILLA_CONFIG", Write("port: 7\n").c_str());
  Set("FLOTILLA_PORT", "8");
  CommandLine line;
  line.Parse({"serve", "--model=m", "--config", "none"});
  EXPECT_EQ(line.port, 8000);
}

TEST_F(FlagSourcesTest, WhatIsNotForPeopleIsNotSet) {
  Set("FLOTILLA_BIN_DIR", "/elsewhere");
  Set("FLOTILLA_PORT", "9");
  CommandLine line;
  line.Parse({"serve", "--model=m"});
  EXPECT_EQ(line.hidden, "");
  CommandLine plain;
  plain.Parse({"plain"});
  EXPECT_EQ(plain.port, 8000) << "a command without --config has only its line";
}

TEST_F(FlagSourcesTest, KubernetesVariablesAboutAServiceAreNotOurs) {
  Set("FLOTILLA_PORT", "tcp://10.96.0.17:80");
  CommandLine line;
  line.Parse({"serve", "--model=m"});
  EXPECT_EQ(line.port, 8000);
}

TEST_F(FlagSourcesTest, AVariableThatIsNearlyOneOfOursIsToldOf) {
  setenv("FLOTILLA_DISABLE_OVERLAPS", "1", 1);
  setenv("FLOTILLA_SOMETHING_ELSE", "1", 1);
  const auto said = [](std::vector<std::string> words) {
    CommandLine line;
    testing::internal::CaptureStderr();
    line.Parse(std::move(words));
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said({"serve", "--model", "m"}),
              AllOf(HasSubstr("FLOTILLA_DISABLE_OVERLAPS sets no flag; was "
                              "FLOTILLA_DISABLE_OVERLAP meant?"),
                    testing::Not(HasSubstr("SOMETHING"))));
  EXPECT_EQ(said({"serve", "--model", "m", "--config", "none"}), "");
  EXPECT_EQ(said({"plain"}), "");
  unsetenv("FLOTILLA_DISABLE_OVERLAPS");
  unsetenv("FLOTILLA_SOMETHING_ELSE");
}

TEST_F(FlagSourcesTest, AnEmptyVariableIsNotSet) {
  for (const char* name : {"FLOTILLA_MODEL", "FLOTILLA_PORT", "FLOTILLA_ORIGIN", "FLOTILLA_CONFIG",
                           "FLOTILLA_DISABLE_OVERLAP"})
    Set(name, "");
  CommandLine line;
  line.Parse({"serve", "why?", "--config", Write("model: of-the-file\n")});
  EXPECT_EQ(line.model, "of-the-file");
  EXPECT_EQ(line.question, "why?");
  EXPECT_EQ(line.port, 8000);
  EXPECT_FALSE(line.disable_overlap);
  EXPECT_THAT(line.origins, IsEmpty());
  CommandLine without_file;
  without_file.Parse({"serve", "-m", "m"});
  EXPECT_EQ(without_file.model, "m");
}

TEST_F(FlagSourcesTest, AnEmptyTextOfTheFileTakesNothingOfTheLine) {
  CommandLine line;
  line.model = "before";
  line.Parse({"serve", "why?", "--config", Write("model: ''\norigin: ['', b]\n")});
  EXPECT_EQ(line.model, "");
  EXPECT_EQ(line.question, "why?");
  EXPECT_THAT(line.origins, ElementsAre("", "b"));
}

TEST_F(FlagSourcesTest, AnEmptyFileSetsNothing) {
  for (const char* text : {"", "# only a comment\n", "{}\n"}) {
    CommandLine line;
    line.Parse({"serve", "--model=m", "--config", Write(text)});
    EXPECT_EQ(line.port, 8000) << text;
  }
}

TEST_F(FlagSourcesDeathTest, LlamaCppsHfIsNoCryForHelp) {
  CommandLine line;
  EXPECT_EXIT(line.Parse({"serve", "-hf", "a/b"}), ExitedWithCode(2), "here it is --model");
}

TEST_F(FlagSourcesDeathTest, ErrorsNameTheirSource) {
  const auto expect = [&](std::vector<std::string> words, const auto& says) {
    EXPECT_EXIT(CommandLine().Parse(std::move(words)), ExitedWithCode(2), says);
  };
  const auto with_file = [&](const std::string& yaml) {
    return std::vector<std::string>{"serve", "--model=m", "--config", Write(yaml)};
  };
  expect(with_file("# a\nport: 70000\n"), AllOf(HasSubstr("--port"), HasSubstr(".yaml:2)")));
  expect(with_file("prot: 1\n"), HasSubstr(".yaml:1: serve has no flag --prot"));
  expect(with_file("port: 1\nport: 2\n"), HasSubstr(".yaml:2: 'port' is there twice"));
  expect(with_file("port: [1, 2]\n"), HasSubstr("--port takes one value"));
  expect(with_file("port:\n"), HasSubstr("--port takes one value, not nothing"));
  expect(with_file("origin: [[a]]\n"), HasSubstr("--origin takes a list of plain values"));
  expect(with_file("origin: {a: b}\n"), HasSubstr("--origin takes a list"));
  expect(with_file("- port\n"), HasSubstr("one list of flags is wanted"));
  expect(with_file("a: 1\n---\nb: 1\n"), HasSubstr("one list of flags is wanted"));
  expect(with_file("[a]: 1\n"), HasSubstr("the name of a flag is wanted"));
  expect(with_file("port: \"1\nmodel: 2\n"), HasSubstr(".yaml"));
  expect(with_file("disable-overlap: perhaps\n"), HasSubstr("--disable-overlap"));
  expect(with_file("disable-overlap: ''\n"), HasSubstr(".yaml:1: --disable-overlap takes true or"));
  expect({"serve", "--config", "/no/such.yaml"}, HasSubstr("can't read /no/such.yaml"));
  expect({"serve"}, HasSubstr("--model"));
  expect({"serve", "--model=m", "--max-model-len", "10"},
         HasSubstr("serve has no flag --max-model-len; see"));
  expect({"serve", "--modell", "m"}, HasSubstr("did you mean --model?"));
  expect({"--prot"}, HasSubstr("flotilla has no flag --prot; see 'flotilla --help'"));
  Set("FLOTILLA_KV_CACHE_MEMORY", "lots");
  expect({"serve", "--model=m"},
         AllOf(HasSubstr("'lots' is not a size"), HasSubstr("(from FLOTILLA_KV_CACHE_MEMORY)")));
}

}  // namespace
}  // namespace flotilla
