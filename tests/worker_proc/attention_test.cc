// Ragged paged attention: against a naive fp64 one, bit for bit between instruction sets, and
// independent of batching, chunking and what lies in the padding; on every type of cache.
#include <gtest/gtest.h>

#include "tests/worker_proc/attention_problem.h"

namespace flotilla::cpu {
namespace {

using testing::AllTables;
using testing::Config;
using testing::Problem;
using testing::Seq;

constexpr KvType kKvTypes[] = {KvType::kFloat32, KvType::kBFloat16, KvType::kInt8};

const Config kConfigs[] = {
    {9, 3, 64, 64, 16},  // SmolLM2, TP 1
    {6, 2, 64, 64, 16},  // its ranks
    {3, 1, 64, 64, 32}, {4, 1, 256, 256, 16}, {4, 4, 16, 16, 1}, {2, 1, 20, 12, 5},
    {8, 1, 24, 40, 24}, {7, 1, 64, 33, 64},   {8, 8, 17, 9, 3},
};
// Windows of one key, of fewer than a tile has rows, of parts of pages and of more than there is.
std::vector<Config> WindowConfigs() {
  std::vector<Config> configs;
  for (Config config : kConfigs) {
    for (const uint32_t window : {1u, 3u, 16u, 37u, 1000u}) {
      config.window = window;
      config.softcap = window == 37 ? 0.7f : 0;
      config.type = kKvTypes[configs.size() % 3];
      configs.push_back(config);
    }
  }
  return configs;
}
// Each with every type of cache.
std::vector<Config> AllConfigs() {
  std::vector<Config> configs;
  for (Config config : kConfigs) {
    for (const KvType type : kKvTypes) {
      config.type = type;
      configs.push_back(config);
    }
  }
  return configs;
}
// The document's lengths 2, 9, 5 with kv 16, 9, 1024; decodes; prefills; one key.
const std::vector<Seq> kMixes[] = {{{2, 16}, {9, 9}, {5, 300}},
                                   {{1, 1}},
                                   {{1, 100}, {1, 17}, {1, 16}, {1, 15}, {1, 1}},
                                   {{70, 70}},
                                   {{33, 97}, {1, 64}, {3, 3}, {2, 130}}};

TEST(AttentionTest, MatchesNaiveDoubleAndAllTablesGiveTheSameBits) {
  for (const Config& config : AllConfigs()) {
    for (const std::vector<Seq>& seqs : kMixes) {
      Problem problem(config, seqs);
      problem.PoisonPadding();
      const auto expected = problem.Run(ReferenceKernels());
      EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
      for (const KernelTable* table : AllTables()) {
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected))
            << table->name << " heads " << config.heads << " page " << config.page_size << " type "
            << static_cast<uint32_t>(config.type);
      }
    }
  }
}

// What lies before the window is never read.
TEST(AttentionTest, AWindowHidesEarlierKeysAndASoftCapBendsScores) {
  for (const Config& config : WindowConfigs()) {
    for (const std::vector<Seq>& seqs : kMixes) {
      Problem problem(config, seqs);
      problem.PoisonPadding();
      const auto expected = problem.Run(ReferenceKernels());
      EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
      for (const KernelTable* table : AllTables()) {
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected))
            << table->name << " heads " << config.heads << " page " << config.page_size
            << " window " << config.window;
      }
    }
  }
}

TEST(AttentionTest, AWindowOfAllKeysIsNone) {
  Config config = kConfigs[0];
  const std::vector<Seq> seqs = {{33, 97}, {1, 64}};
  const auto without = Problem(config, seqs).Run(ReferenceKernels());
  for (const uint32_t window : {97u, 96u}) {
    config.window = window;
    for (const KernelTable* table : AllTables()) {
      EXPECT_EQ(testing::SameBits(Problem(config, seqs).Run(*table), without), window == 97);
    }
  }
}

TEST(AttentionTest, AWindowedQueryDoesNotDependOnTheChunkItIsIn) {
  for (const uint32_t window : {2u, 13u, 16u}) {
    Config config = kConfigs[0];
    config.window = window;
    Problem problem(config, {{50, 50}});
    for (const KernelTable* table : AllTables()) {
      const auto whole = problem.Run(*table);
      for (const uint32_t chunk : {1u, 7u}) {
        std::vector<float> joined;
        for (uint32_t begin = 0; begin < 50; begin += chunk) {
          const auto part = problem.RunChunk(*table, begin, std::min(50u, begin + chunk));
          joined.insert(joined.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(testing::SameBits(joined, whole)) << table->name << " window " << window;
      }
    }
  }
}

TEST(AttentionTest, HowTheWorkIsCutDoesNotMatter) {
  for (const Config& config : AllConfigs()) {
    Problem problem(config, {{33, 97}, {1, 64}, {3, 3}});
    problem.set_num_pieces(1);
    const auto expected = problem.Run(ReferenceKernels());
    for (const KernelTable* table : AllTables()) {
      for (const uint32_t pieces : {1u, 7u, 1000u}) {
        problem.set_num_pieces(pieces);
        EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected)) << table->name;
      }
    }
  }
}

TEST(AttentionTest, ASequenceDoesNotDependOnItsNeighbours) {
  const std::vector<Seq> seqs = {{2, 16}, {9, 9}, {1, 77}, {40, 100}};
  Problem problem(kConfigs[0], seqs);
  for (const KernelTable* table : AllTables()) {
    const auto together = problem.Run(*table);
    size_t at = 0;
    for (uint32_t s = 0; s < seqs.size(); ++s) {
      const auto alone = problem.Run(*table, s, 1);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + at, alone.size() * sizeof(float)), 0);
      at += alone.size();
    }
  }
}

TEST(AttentionTest, AQueryDoesNotDependOnTheChunkItIsIn) {
  Problem problem(kConfigs[0], {{50, 50}});
  for (const KernelTable* table : AllTables()) {
    const auto whole = problem.Run(*table);
    for (const uint32_t chunk : {1u, 7u, 16u}) {
      std::vector<float> joined;
      for (uint32_t begin = 0; begin < 50; begin += chunk) {
        const auto part = problem.RunChunk(*table, begin, std::min(50u, begin + chunk));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(testing::SameBits(joined, whole)) << table->name << " chunk " << chunk;
    }
  }
}

// Contexts of several splits: of one key more or fewer than some, and with pages that lie across a
// boundary.
const std::vector<Seq> kLongMixes[] = {{{1, 3000}, {1, 1024}, {1, 1025}, {1, 100}},
                                       {{5, 2050}, {30, 1040}, {1, 2048}}};
std::vector<Config> LongConfigs() {
  std::vector<Config> configs;
  for (Config config : {Config{9, 3, 64, 64, 16}, Config{2, 1, 20, 12, 5}, Config{4, 4, 16, 16, 1},
                        Config{8, 1, 24, 40, 24}, Config{4, 1, 32, 33, 64}}) {
    for (const uint32_t window : {0u, 2u, 1000u, 1500u}) {
      config.window = window;
      config.softcap = window == 1000 ? 0.7f : 0;
      config.type = kKvTypes[configs.size() % 3];
      configs.push_back(config);
    }
  }
  return configs;
}

TEST(AttentionTest, LongContextsMatchNaiveDoubleHoweverTheirKeysAreShared) {
  for (const Config& config : LongConfigs()) {
    for (const std::vector<Seq>& seqs : kLongMixes) {
      Problem problem(config, seqs);
      problem.PoisonPadding();
      const auto expected = problem.Run(ReferenceKernels());
      EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
      for (const uint32_t max_part_rows : {0u, 100u, 8192u}) {
        problem.set_num_pieces(64, max_part_rows);
        EXPECT_TRUE(testing::SameBits(problem.Run(ReferenceKernels()), expected));
        for (const KernelTable* table : AllTables()) {
          EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected))
              << table->name << " heads " << config.heads << " page " << config.page_size
              << " window " << config.window << " part rows " << max_part_rows;
        }
      }
    }
  }
}

// The largest steps there are: one prompt, and one token each of many.
TEST(AttentionTest, EightThousandQueriesOfOneOrManySequences) {
  std::vector<Seq> many;
  for (uint32_t s = 0; s < 512; ++s) many.push_back({1, 1 + s * 7});
  for (const std::vector<Seq>& seqs : {std::vector<Seq>{{8192, 8192}, {1, 8192}}, many}) {
    Problem problem({1, 1, 8, 8, 16, KvType::kBFloat16}, seqs);
    problem.set_num_pieces(8);
    const auto expected = problem.Run(*AllTables().back());
    EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
    for (const KernelTable* table : AllTables()) {
      EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected)) << table->name;
    }
  }
}

// A key that outweighs all others, in the first split, in a middle one and in the last.
TEST(AttentionTest, SplitsOfVeryDifferentScoresAreMerged) {
  for (const uint32_t heavy : {5u, 1500u, 2999u}) {
    Problem problem({3, 1, 64, 64, 16}, {{1, 3000}});
    problem.Fill(true, 0, heavy, 0, 40);
    problem.Fill(true, 0, 2100, 0, -40);
    problem.Store();
    const auto expected = problem.Run(ReferenceKernels());
    EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6) << heavy;
    for (const KernelTable* table : AllTables()) {
      EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected)) << table->name;
    }
  }
}

TEST(AttentionTest, ALongPromptDoesNotDependOnItsChunks) {
  Config config = kConfigs[2];
  for (const uint32_t window : {0u, 600u}) {
    config.window = window;
    Problem problem(config, {{2060, 2060}});
    for (const KernelTable* table : AllTables()) {
      problem.set_num_pieces(4);
      const auto whole = problem.Run(*table);
      problem.set_num_pieces(1000, 8192);
      for (const uint32_t chunk : {1000u, 2049u}) {
        std::vector<float> joined;
        for (uint32_t begin = 0; begin < 2060; begin += chunk) {
          const auto part = problem.RunChunk(*table, begin, std::min(2060u, begin + chunk));
          joined.insert(joined.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(testing::SameBits(joined, whole)) << table->name << " chunk " << chunk;
      }
    }
  }
}

// Rows of K that are all zero score 0, rows of V that are add nothing.
TEST(AttentionTest, RowsOfZerosHaveTheirPlaceInAQuantisedCache) {
  Config config = kConfigs[0];
  config.type = KvType::kInt8;
  Problem problem(config, {{1, 40}, {1, 3}});
  for (const uint32_t key : {0u, 1u, 2u, 17u}) problem.Fill(true, 0, key, 1, 0);
  for (uint32_t key = 0; key < 3; ++key) problem.Fill(false, 1, key, 0, -0.0f);
  problem.Store();
  const auto expected = problem.Run(ReferenceKernels());
  EXPECT_LT(testing::RelativeError(expected, problem.Naive()), 2e-6);
  for (uint32_t i = 0; i < 3 * 64; ++i) EXPECT_EQ(expected[9 * 64 + i], 0) << i;
  for (const KernelTable* table : AllTables()) {
    EXPECT_TRUE(testing::SameBits(problem.Run(*table), expected)) << table->name;
  }
}

// Who sees a key that is not finite gets NaN, and nobody else: with every table.
TEST(AttentionTest, ANaNReachesThoseWhoSeeItInAQuantisedCache) {
  Config config = kConfigs[0];
  config.type = KvType::kInt8;
  Problem problem(config, {{8, 40}, {1, 40}});
  for (const bool of_k : {true, false}) problem.Fill(of_k, 0, 36, 1, NAN);  // as write_kv leaves it
  problem.Store();
  for (const KernelTable* table : AllTables()) {
    const auto out = problem.Run(*table);
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t token = i / (9 * 64), kv_head = i / (3 * 64) % 3;
      ASSERT_EQ(std::isnan(out[i]), token >= 4 && token < 8 && kv_head == 1) << i;
    }
  }
}

}  // namespace
}  // namespace flotilla::cpu
