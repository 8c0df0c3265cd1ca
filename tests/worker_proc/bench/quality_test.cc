// The whole benchmark over small random models, and llama.cpp's side of it with a program that
// stands in for it.
#include "worker_proc/bench/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "common/base/check.h"
#include "common/text/model_text.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/naive_llama.h"

namespace flotilla::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kText[] =
    "A small model reads this text byte by byte. It has seen nothing in its life, so that every "
    "next byte is as good as any other to it; but how far one arithmetic is from another can be "
    "measured all the same. 0123456789!";

class QualityTest : public ::testing::Test {
 protected:
  QualityTest() {
    const std::string base = StrCat(::testing::TempDir(), "quality_test_", getpid());
    options_.model = base + ".gguf";
    options_.text = base + ".txt";
    options_.context_length = 100;
    options_.threads = 2;
    std::ofstream(options_.text) << kText;
  }
  ~QualityTest() override {
    unlink(options_.model.c_str());
    unlink(options_.text.c_str());
  }
  void Write(const testing::TinyLlamaOptions& model) {
    testing::WriteTinyLlama(options_.model, model);
  }
  StatusOr<QualityReport> Run() const {
    return RunQuality(options_, [](const QualityRow&, uint64_t, uint64_t) { return OkStatus(); });
  }
  QualityOptions options_;
};

std::vector<std::string> Names(const QualityReport& report) {
  std::vector<std::string> names;
  for (const QualityRow& row : report.rows) names.push_back(row.activations + "+" + row.kv);
  return names;
}

// Of the windows' tokens after the first, by the naive forward in double.
double NaivePerplexity(const std::string& path, const std::vector<Window>& windows) {
  const auto checkpoint = OpenCheckpoint(path);
  CHECK_OK(checkpoint.status());
  double sum = 0, count = 0;
  for (const Window& window : windows) {
    const auto logits = testing::NaiveLlama(checkpoint->get()).Forward(window);
    for (size_t i = 0; i + 1 < window.size(); ++i) {
      double total = 0;
      for (const double x : logits[i]) total += std::exp(x);
      sum += std::log(total) - logits[i][static_cast<size_t>(window[i + 1])];
      ++count;
    }
  }
  return std::exp(sum / count);
}

// The tiny model's tokens are bytes but for what its merges join: the windows are read back.
std::vector<Window> WindowsRead(const QualityOptions& options) {
  std::vector<Window> windows;
  const auto text = OpenModelText(options.model, nullptr);
  CHECK_OK(text.status());
  const auto ids = text->tokenizer->Encode(kText, {.parse_special = false, .add_special = false});
  CHECK_OK(ids.status());
  const auto all = text->tokenizer->Encode(kText, {.parse_special = false, .add_special = true});
  const std::vector<int32_t> prefix(all->begin(), all->end() - static_cast<ptrdiff_t>(ids->size()));
  for (size_t begin = 0; begin < ids->size();) {
    const size_t count = std::min(ids->size() - begin, options.context_length - prefix.size());
    windows.push_back(prefix);
    for (size_t i = 0; i < count; ++i) windows.back().push_back((*ids)[begin++]);
  }
  return windows;
}

TEST_F(QualityTest, ComparesEveryArithmeticWithTheReference) {
  Write({});
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_GE(report->rows.size(), 4u);
  EXPECT_EQ(Names(*report)[0], "float32+float32");
  EXPECT_THAT(Names(*report),
              ::testing::IsSupersetOf({"float32+bfloat16", "int8+bfloat16", "int8+float32"}));
  EXPECT_THAT(report->notes, IsEmpty());

  const std::vector<Window> windows = WindowsRead(options_);
  EXPECT_EQ(report->windows, windows.size());
  uint64_t tokens = 0;
  for (const Window& window : windows) tokens += window.size();
  EXPECT_EQ(report->tokens, tokens);
  const QualityScore& reference = report->rows[0].score;
  EXPECT_EQ(reference.max_kl, 0);
  EXPECT_EQ(reference.same_top1, tokens);
  EXPECT_EQ(reference.predicted, tokens - windows.size());
  const double exact = NaivePerplexity(options_.model, windows);
  EXPECT_NEAR(reference.perplexity() / exact, 1, 1e-5);
  for (size_t i = 1; i < report->rows.size(); ++i) {
    const QualityRow& row = report->rows[i];
    SCOPED_TRACE(Names(*report)[i]);
    EXPECT_EQ(row.score.positions, tokens);
    EXPECT_EQ(row.score.decided, reference.decided);
    EXPECT_GT(row.score.mean_kl(), 0);
    EXPECT_GE(row.score.max_kl, row.score.mean_kl());
    EXPECT_LT(row.score.mean_kl(), row.activations == "int8" ? 1e-2 : 1e-3);
    EXPECT_NEAR(row.score.perplexity() / exact, 1, 0.02);
    EXPECT_NE(row.score.perplexity(), reference.perplexity());
  }
}

TEST_F(QualityTest, AFloatModelIsNotComparedInInt8) {
  testing::TinyLlamaOptions model;
  model.matrix_dtype = model.embedding_dtype = DType::kBF16;
  Write(model);
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  for (const QualityRow& row : report->rows) EXPECT_EQ(row.activations, "float32");
  ASSERT_EQ(report->notes.size(), 1u);
  EXPECT_THAT(report->notes[0], HasSubstr("no quantised matrices"));
  EXPECT_THAT(QualityTable(*report), HasSubstr("left out: --dtype int8"));
}

TEST_F(QualityTest, TellsTheSameInATableAndAsJson) {
  Write({});
  options_.max_tokens = 30;
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  const boost::json::object json = QualityJson(*report);
  EXPECT_EQ(json.at("tokens").to_number<uint64_t>(), report->tokens);
  const boost::json::array& rows = json.at("rows").as_array();
  ASSERT_EQ(rows.size(), report->rows.size());
  const std::string table = QualityTable(*report);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("activations").as_string(), report->rows[i].activations);
    EXPECT_EQ(rows[i].at("mean_kl").as_double(), report->rows[i].score.mean_kl());
    EXPECT_EQ(rows[i].at("perplexity").as_double(), report->rows[i].score.perplexity());
    EXPECT_THAT(table, HasSubstr(report->rows[i].kv));
  }
}

TEST_F(QualityTest, OurOwnTextIsThere) {
  Write({});
  options_.text.clear();
  options_.max_tokens = 250;
  const auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GE(report->tokens, 250u);
  EXPECT_EQ(report->text, "own");
}

TEST_F(QualityTest, StopsWhereItIsTold) {
  Write({});
  uint64_t calls = 0;
  const auto report = RunQuality(options_, [&](const QualityRow& row, uint64_t done, uint64_t) {
    ++calls;
    return row.activations == "int8" && done > 0 ? absl::CancelledError("enough") : OkStatus();
  });
  EXPECT_EQ(report.status().code(), absl::StatusCode::kCancelled);
  EXPECT_GT(calls, 4u);
}

TEST_F(QualityTest, BadOptionsAreNamed) {
  Write({});
  const auto message = [&] { return std::string(Run().status().message()); };
  const QualityOptions good = options_;
  options_.context_length = 513;  // the model has 512
  EXPECT_THAT(message(), HasSubstr("--context-length 513"));
  options_ = good;
  options_.text = "/nowhere/at/all";
  EXPECT_THAT(message(), HasSubstr("--text: /nowhere/at/all"));
  options_.text = ::testing::TempDir();
  EXPECT_THAT(message(), HasSubstr("--text"));
  options_ = good;
  options_.max_tokens = 1;
  EXPECT_THAT(message(), HasSubstr("fewer than two tokens"));
  options_ = good;
  options_.llama_logits = "/nowhere/llama_logits";
  EXPECT_THAT(message(), HasSubstr("--llama-logits: can't run /nowhere/llama_logits"));
}

TEST(MakeWindowsTest, EveryTokenIsInOneWindowBehindThePrefix) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<int32_t> bos = {9};
  EXPECT_THAT(MakeWindows(tokens, {}, 3), ElementsAre(Window{1, 2, 3}, Window{4, 5, 6}, Window{7}));
  EXPECT_THAT(MakeWindows(tokens, bos, 3),
              ElementsAre(Window{9, 1, 2}, Window{9, 3, 4}, Window{9, 5, 6}, Window{9, 7}));
  EXPECT_THAT(MakeWindows(tokens, bos, 100), ElementsAre(Window{9, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_THAT(MakeWindows({}, bos, 3), IsEmpty());
}

// More than a pipe holds, so that the program waits for us.
TEST(LlamaSourceTest, ReadsTheProgramsRecordsInChunks) {
  std::vector<Window> windows(2);
  for (int32_t i = 0; i < 150; ++i) windows[0].push_back(i * 3);
  windows[1] = {5, 6, 7};
  const auto source = MakeLlamaSource(FLOTILLA_FAKE_LLAMA, "model", windows);
  ASSERT_TRUE(source.ok()) << source.status();
  for (const Window& window : windows) {
    for (uint32_t begin = 0; begin < window.size(); begin += 64) {
      const auto left = static_cast<uint32_t>(window.size()) - begin;
      const Chunk chunk{&window, begin, std::min(64u, left)};
      std::vector<float> logits;
      ASSERT_TRUE((*source)->Read(chunk, &logits).ok());
      ASSERT_EQ(logits.size(), size_t{chunk.count} * 300);
      for (uint32_t i = 0; i < logits.size(); ++i) {
        const uint32_t p = begin + i / 300;
        const auto id = static_cast<uint32_t>(window[p]);
        ASSERT_EQ(logits[i], static_cast<float>((31 * id + 7 * p + i % 300) % 101) / 10);
      }
    }
  }
}

TEST(LlamaSourceTest, SaysWhatTheProgramSaidWhenItFails) {
  const std::vector<Window> windows = {{1, 2}, {3, 4}};
  const auto source = MakeLlamaSource(FLOTILLA_FAKE_LLAMA, "fails", windows);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<float> logits;
  EXPECT_TRUE((*source)->Read({&windows[0], 0, 2}, &logits).ok());
  const Status status = (*source)->Read({&windows[1], 0, 2}, &logits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("can't go on"));
}

TEST(LlamaSourceTest, RefusesRecordsOfOtherPositions) {
  const std::vector<Window> windows = {{1, 2, 3}, {3, 4}};
  const auto source = MakeLlamaSource(FLOTILLA_FAKE_LLAMA, "short", windows);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<float> logits;
  const Status status = (*source)->Read({&windows[0], 0, 3}, &logits);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a record of position 0 where 2 is next"));
}

}  // namespace
}  // namespace flotilla::bench
