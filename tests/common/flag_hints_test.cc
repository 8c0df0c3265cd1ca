#include "common/cli/flag_hints.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(FlagHintsTest, TheNearestIsASlipOfThePenAway) {
  const std::vector<std::string> commands = {"serve", "engine", "router", "top"};
  EXPECT_EQ(NearestOf("serv", commands), "serve");
  EXPECT_EQ(NearestOf("rooter", commands), "router");
  EXPECT_EQ(NearestOf("tpo", commands), "");
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
  EXPECT_EQ(explain({"--max-num-seqs", "4"}), "serve has no flag --max-num-seqs")
      << "this command has none of that meaning";
  EXPECT_EQ(explain({"--prot=1"}), "serve has no flag --prot; did you mean --port?");
  EXPECT_EQ(explain({"--nope"}), "serve has no flag --nope");
  EXPECT_EQ(explain({"--max_model_len", "10"}),
            "serve has no flag --max_model_len; here it is --context-length");
  EXPECT_EQ(explain({"-hf", "a/b"}), "serve has no flag -hf; here it is --model");
  EXPECT_EQ(explain({"--enable-prefix-caching"}),
            "serve has no flag --enable-prefix-caching; it needs none: prefixes are cached anyway");
  EXPECT_EQ(OurNameOf(serve, "--ctx-size"), "--context-length");
  EXPECT_EQ(OurNameOf(serve, "--nope"), "");
  serve.add_option("--router-flag", text)->group("");
  EXPECT_EQ(explain({"--nope"}), "serve has no flag --nope") << "it has no router";
  serve.add_option("--policy", text);
  EXPECT_EQ(explain({"--nope"}),
            "serve has no flag --nope; flags of flotilla-router are given as --router-flag=FLAG");
  EXPECT_EQ(explain({"my.gguf"}), "serve does not take 'my.gguf'; a model is --model my.gguf");
  const CLI::App top("Shows", "top");
  EXPECT_EQ(ExplainExtras(top, {"x", "y"}), "top does not take 'x'");
}

}  // namespace
}  // namespace flotilla
