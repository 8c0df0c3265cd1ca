#include "common/cli/flag_hints.h"

#include <gtest/gtest.h>

#include "common/cli/json_flag.h"

namespace flotilla {
namespace {

TEST(FlagHintsTest, TheNearestIsASlipOfThePenAway) {
  const std::vector<std::string> commands = {"serve", "engine", "router", "top"};
  EXPECT_EQ(NearestOf("serv", commands), "serve");
  EXPECT_EQ(NearestOf("rooter", commands), "router");
  EXPECT_EQ(NearestOf("tpo", commands), "top");
  EXPECT_EQ(NearestOf("host", {"post"}), "post");
  EXPECT_EQ(NearestOf("--batch-size", {"--page-size"}), "") << "another word";
  EXPECT_EQ(NearestOf("--port", {"--host"}), "");
  EXPECT_EQ(NearestOf("bananas", commands), "");
}

TEST(FlagHintsTest, SaysWhatWasProbablyMeant) {
  CLI::App serve("Serves", "serve");
  std::string text;
  for (const char* flag :
       {"--model", "--context-length", "--tp", "--device", "--port", "--kv-cache-memory"})
    serve.add_option(flag, text);
  const auto explain = [&](std::vector<std::string> extras) {
    return ExplainExtras(serve, extras);
  };
  EXPECT_EQ(explain({"--max-model-len", "10"}),
            "serve has no flag --max-model-len; here it is --context-length");
  EXPECT_EQ(explain({"--tensor-parallel-size=2"}),
            "serve has no flag --tensor-parallel-size; here it is --tp");
  EXPECT_EQ(explain({"-ngl", "99"}), "serve has no flag -ngl; here it is --device cuda");
  EXPECT_EQ(explain({"--max-num-seqs", "4"}),
            "serve has no flag --max-num-seqs; see 'flotilla serve --help'")
      << "this command has none of that meaning";
  EXPECT_EQ(explain({"--prot=1"}), "serve has no flag --prot; did you mean --port?");
  EXPECT_EQ(explain({"--nope"}), "serve has no flag --nope; see 'flotilla serve --help'");
  EXPECT_EQ(explain({"--max_model_len", "10"}),
            "serve has no flag --max_model_len; here it is --context-length");
  EXPECT_EQ(explain({"-hf", "a/b"}), "serve has no flag -hf; here it is --model");
  EXPECT_EQ(explain({"--enable-prefix-caching"}),
            "serve has no flag --enable-prefix-caching; leave it out: prefixes are cached anyway");
  EXPECT_EQ(explain({"--enable-lora"}),
            "serve has no flag --enable-lora; adapters (LoRA) are not built");
  EXPECT_EQ(OurNameOf(serve, "--ctx-size"), "--context-length");
  EXPECT_EQ(OurNameOf(serve, "--nope"), "");
  serve.add_option("--router-flag", text)->group("");
  EXPECT_EQ(explain({"--nope"}), "serve has no flag --nope; see 'flotilla serve --help'")
      << "it has no router";
  serve.add_option("--policy", text);
  EXPECT_EQ(
      explain({"--nope"}),
      "serve has no flag --nope; see 'flotilla serve --help', and 'flotilla router --help' for "
      "those to give as --router-flag=FLAG");
  EXPECT_EQ(explain({"my.gguf"}), "serve does not take 'my.gguf'; a model is --model my.gguf");
  const CLI::App top("Shows", "top");
  EXPECT_EQ(ExplainExtras(top, {"x", "y"}), "top does not take 'x'");
}

TEST(JsonObjectFlagTest, TakesAnObjectOrNothing) {
  const CLI::Validator flag = JsonObjectFlag();
  for (std::string text : {"", "{}", R"({"a":{"b":1}})"}) EXPECT_EQ(flag(text), "") << text;
  for (std::string text : {"x", "[1]", "1", R"({"a":1,"a":2})", "{"})
    EXPECT_NE(flag(text), "") << text;
}

}  // namespace
}  // namespace flotilla
