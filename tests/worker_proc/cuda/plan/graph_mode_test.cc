// Each mode asked for, each fallback of auto, and which steps a mode replays.
#include "worker_proc/cuda/plan/graph_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::cuda {
namespace {

using ::testing::HasSubstr;

constexpr GraphSupport kAll = {true, true, true, true, true};
constexpr GraphSupport kNoCapture = {false, true, true, true, true};
constexpr GraphSupport kDecodeOnly = {true, false, true, true, true};
constexpr GraphSupport kNoAttention = {true, false, false, true, true};
constexpr GraphSupport kDecodeNoPieces = {true, false, true, false, true};
constexpr GraphSupport kNothing = {true, false, false, false, true};
constexpr GraphSupport kNoCollective = {true, true, true, true, false};

TEST(GraphModeTest, Auto) {
  const struct {
    GraphSupport support;
    GraphMode mode;
    const char* reason;
  } table[] = {
      {kAll, GraphMode::kFull, "everything runs in a graph"},
      {kDecodeOnly, GraphMode::kPiecewise, "not full: attention over prompts"},
      {kNoAttention, GraphMode::kPiecewise, "not full: attention over prompts"},
      {kDecodeNoPieces, GraphMode::kFullDecodeOnly, "not piecewise: the forward can't be cut"},
      {kNothing, GraphMode::kNone, "not full_decode_only: attention can't run in a graph"},
      {kNoCapture, GraphMode::kNone, "the device can't capture"},
      {kNoCollective, GraphMode::kNone, "the collective of the ranks"},
  };
  for (const auto& row : table) {
    const auto choice = ChooseGraphMode(GraphMode::kAuto, row.support);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->mode, row.mode) << choice->reason;
    EXPECT_THAT(choice->reason, HasSubstr(row.reason));
  }
}

TEST(GraphModeTest, Forced) {
  using Mode = GraphMode;
  const struct {
    const char* name;
    std::vector<bool> works;  // with the supports below
  } table[] = {
      {"none", {true, true, true, true, true, true, true}},
      {"piecewise", {true, false, true, true, false, false, false}},
      {"full", {true, false, false, false, false, false, false}},
      {"full_decode_only", {true, false, true, false, true, false, false}},
      {"full_and_piecewise", {true, false, true, false, false, false, false}},
  };
  const GraphSupport supports[] = {
      kAll, kNoCapture, kDecodeOnly, kNoAttention, kDecodeNoPieces, kNothing, kNoCollective};
  for (const auto& row : table) {
    const auto mode = ParseGraphMode(row.name);
    ASSERT_TRUE(mode.ok());
    EXPECT_STREQ(GraphModeName(*mode), row.name);
    for (size_t i = 0; i < std::size(supports); ++i) {
      const auto choice = ChooseGraphMode(*mode, supports[i]);
      EXPECT_EQ(choice.ok(), row.works[i]) << row.name << " with support " << i;
      if (choice.ok()) {
        EXPECT_EQ(choice->mode, *mode);
      } else {
        EXPECT_THAT(std::string(choice.status().message()),
                    HasSubstr(StrCat("--graph-mode ", row.name, ": ")));
      }
    }
  }
  EXPECT_EQ(*ParseGraphMode("auto"), Mode::kAuto);
  EXPECT_THAT(std::string(ParseGraphMode("half").status().message()),
              HasSubstr("--graph-mode: 'half' is not auto, none"));
}

TEST(GraphModeTest, KindOfAStep) {
  using K = GraphKind;
  const struct {
    GraphMode mode;
    GraphKind decode, other;
  } table[] = {
      {GraphMode::kNone, K::kEager, K::kEager},
      {GraphMode::kPiecewise, K::kPiecewise, K::kPiecewise},
      {GraphMode::kFull, K::kFull, K::kFull},
      {GraphMode::kFullDecodeOnly, K::kFull, K::kEager},
      {GraphMode::kFullAndPiecewise, K::kFull, K::kPiecewise},
  };
  for (const auto& row : table) {
    EXPECT_EQ(GraphKindOf(row.mode, ForwardMode::kDecode), row.decode) << GraphModeName(row.mode);
    EXPECT_EQ(GraphKindOf(row.mode, ForwardMode::kExtend), row.other) << GraphModeName(row.mode);
    EXPECT_EQ(GraphKindOf(row.mode, ForwardMode::kMixed), row.other) << GraphModeName(row.mode);
  }
}

}  // namespace
}  // namespace flotilla::cuda
