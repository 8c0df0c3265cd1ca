#include "deploy/launcher/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <memory>

#include "common/base/memory_info.h"
#include "tests/deploy/eight_cores.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string TextOf(const Machine& machine, const ServeOptions& options = {},
                   const std::optional<ModelNeeds>& needs = std::nullopt) {
  const StatusOr<HostSpan> span = SpanOfHead(options);
  EXPECT_TRUE(span.ok()) << span.status();
  const auto plan = PlanHost(machine, options, *span, nullptr);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return DoctorText(machine, *plan, needs);
}

TEST(DoctorTest, SaysWhichRanksAreHere) {
  ServeOptions head;
  head.tp = "4";
  head.remote_ranks = 3;
  head.join_address = "10.0.0.1:29500";
  head.link_secret_file = "/secret";
  head.pin = "on";
  EXPECT_THAT(TextOf(EightCores(), head),
              AllOf(HasSubstr("4, of which 1 here and 3 on hosts that join at 10.0.0.1:29500\n"),
                    HasSubstr("worker 0 on 0-7\n"), Not(HasSubstr("worker 1"))));
}

TEST(DoctorTest, OneHostNeedsNoWordOfOthers) {
  EXPECT_THAT(TextOf(EightCores()),
              AllOf(Not(HasSubstr("hosts")), HasSubstr("GPUs             none; --device cuda")));
  Machine machine = EightCores();
  machine.gpus = {"A", "B"};
  EXPECT_THAT(TextOf(machine), HasSubstr("GPUs             2: A, B; --device cuda"));
}

TEST(DoctorTest, AQuotaBelowTheCoresCanBeRaised) {
  Machine machine = EightCores();
  EXPECT_THAT(TextOf(machine), HasSubstr("quota            none\n"));
  machine.quota_cores = 8;
  EXPECT_THAT(TextOf(machine), HasSubstr("quota            8 cores\n"));
  machine.quota_cores = 2.5;
  EXPECT_THAT(
      TextOf(machine),
      AllOf(HasSubstr("quota            2.5 cores; more of the 8 are used with a higher one"),
            HasSubstr("cpu.max"), HasSubstr("limits.cpu in Kubernetes"),
            HasSubstr("a part of a core is of no use\n")));
}

TEST(DoctorTest, WithoutAnInstructionSetItSaysWhatHasOne) {
  Machine machine = EightCores();
  EXPECT_THAT(TextOf(machine), HasSubstr("instruction set  avx2 of avx2\n"));
  machine.isas.clear();
  EXPECT_THAT(TextOf(machine), AllOf(HasSubstr("below x86-64-v3: the CPU backend can't run here"),
                                     HasSubstr("AVX2, FMA"), HasSubstr("-cpu host")));
}

TEST(DoctorTest, MemoryIsComparedWithWhatTheModelNeeds) {
  Machine machine = EightCores();
  EXPECT_THAT(TextOf(machine), HasSubstr("memory           4.0 GiB available\n"));
  ModelNeeds needs{.name = "m",
                   .replicas = 1,
                   .weight_bytes = 100 * kMiB,
                   .kv_bytes = 512 * kMiB,
                   .context_bytes = 180 * kMiB,
                   .process_bytes = 300 * kMiB};
  EXPECT_THAT(TextOf(machine, {}, needs),
              HasSubstr("4.0 GiB available; m needs 912 MiB (weights 100 MiB, KV cache 512 MiB, "
                        "processes 300 MiB)\n"));
  machine.available_bytes = 600 * kMiB;
  EXPECT_THAT(TextOf(machine, {}, needs), HasSubstr("): free some or lower --kv-cache-memory, to "
                                                    "181MiB at least\n"));
  machine.memory_limit_bytes = 800 * kMiB;
  EXPECT_THAT(TextOf(machine, {}, needs),
              AllOf(HasSubstr("600 MiB available, the limit is 800 MiB; m needs 912 MiB"),
                    HasSubstr("): raise the limit (the cgroup's memory.max"),
                    HasSubstr("limits.memory in Kubernetes) or lower --kv-cache-memory")));
  needs.kv_bytes = 100 * kMiB;
  machine.available_bytes = 4096 * kMiB;
  EXPECT_THAT(
      TextOf(machine, {}, needs),
      HasSubstr("KV cache 180 MiB, processes 300 MiB): the KV cache would have 100 MiB, less "
                "than one context takes; --kv-cache-memory 181MiB or lower --context-length\n"));
  machine.available_bytes = 600 * kMiB;
  needs.kv_bytes = needs.context_bytes;  // is as low as it goes
  needs.replicas = 2;
  EXPECT_THAT(TextOf(machine, {}, needs),
              HasSubstr("processes 300 MiB, for each of 2): raise the limit"));
  EXPECT_THAT(TextOf(machine, {}, needs), HasSubstr("or lower --context-length, or --replicas\n"));
}

TEST(DoctorTest, WhatIsNotPinnedSaysWhatWouldBe) {
  EXPECT_THAT(TextOf(EightCores()), HasSubstr("--pin            off: one NUMA node"));
  Machine machine = EightCores();
  machine.allowed = {0, 1};
  EXPECT_THAT(TextOf(machine),
              AllOf(HasSubstr("off: others may use these cores too; with an exclusive cpuset "),
                    HasSubstr("--pin on if nobody does")));
  machine.quota_cores = 2;
  EXPECT_THAT(TextOf(machine), HasSubstr("; without a quota and with an exclusive cpuset "));
  ServeOptions many;
  many.replicas = 3;
  EXPECT_THAT(TextOf(machine, many),
              HasSubstr("are more than the 2 cores; fewer --threads, --tp or --replicas"));
}

class NeedsTest : public ::testing::Test {
 protected:
  NeedsTest() : path_(::testing::TempDir() + StrCat("needs_test-", getpid(), ".gguf")) {
    testing::WriteTinyLlama(path_);
    model_ = *OpenCheckpoint(path_);
  }
  ~NeedsTest() override { unlink(path_.c_str()); }

  std::string path_;
  std::unique_ptr<Checkpoint> model_;
};

TEST_F(NeedsTest, AreThoseOfWeightsCacheAndProcesses) {
  ServeOptions options;
  options.replicas = 2;
  const ModelNeeds needs = NeedsOf(*model_, "tiny", options, 1, 8192 * kMiB);
  EXPECT_GT(needs.weight_bytes, 50'000u);
  EXPECT_EQ(needs.kv_bytes, kAutomaticKvBytes);
  // 512 tokens, 2 layers, keys and values of 3 heads of 16 in bfloat16.
  EXPECT_EQ(needs.context_bytes, 512u * 2 * 2 * 3 * 16 * 2);
  EXPECT_EQ(needs.process_bytes, kReplicaOverheadBytes);
  EXPECT_EQ(needs.all(), 2 * (needs.weight_bytes + needs.kv_bytes + needs.process_bytes));
  // More ranks than heads have one each.
  EXPECT_EQ(NeedsOf(*model_, "tiny", options, 5, 8192 * kMiB).context_bytes,
            512u * 2 * 2 * 5 * 16 * 2);
  // Of what the weights and processes leave, a quarter at most.
  const uint64_t loaded = 2 * (needs.weight_bytes + needs.process_bytes);
  const auto kv_bytes = [&](uint64_t left) {
    return NeedsOf(*model_, "tiny", options, 1, loaded + left).kv_bytes;
  };
  EXPECT_EQ(kv_bytes(400 * kMiB), 100 * kMiB);
  EXPECT_EQ(NeedsOf(*model_, "tiny", options, 1, loaded / 2).kv_bytes, 0u);
}

TEST_F(NeedsTest, ManyReplicasTakeHalfOfWhatIsLeftTogether) {
  ServeOptions options;
  options.replicas = 8;
  const ModelNeeds any = NeedsOf(*model_, "tiny", options, 1, 8192 * kMiB);
  const uint64_t loaded = 8 * (any.weight_bytes + any.process_bytes);
  EXPECT_EQ(NeedsOf(*model_, "tiny", options, 1, loaded + 1600 * kMiB).kv_bytes, 100 * kMiB);
}

TEST_F(NeedsTest, ReplicasThatDoNotFitTogetherAreRefused) {
  ServeOptions options;
  options.kv_cache_memory = std::to_string(3072 * kMiB);
  const auto share = [&](uint32_t replicas) {
    options.replicas = replicas;
    ServeOptions given = options;
    const Status status =
        ShareMemory(NeedsOf(*model_, "tiny", options, 1, 4096 * kMiB), 4096 * kMiB, &given);
    EXPECT_EQ(given.kv_cache_memory, options.kv_cache_memory);
    return status;
  };
  EXPECT_TRUE(share(1).ok()) << "it finds out by itself, exactly";
  const Status refused = share(2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--replicas 2 need "), HasSubstr("3.0 GiB of KV cache"),
                    HasSubstr("4.0 GiB are available; use fewer replicas")));
  options.kv_cache_memory = "0";
  ASSERT_TRUE(
      ShareMemory(NeedsOf(*model_, "tiny", options, 1, 4096 * kMiB), 4096 * kMiB, &options).ok());
  EXPECT_EQ(options.kv_cache_memory, std::to_string(kAutomaticKvBytes));
}

TEST_F(NeedsTest, FollowTheFlags) {
  ServeOptions options;
  options.kv_cache_memory = "1048576";
  options.context_length = 100;  // 7 pages of 16
  options.kv_cache_dtype = "int8";
  const ModelNeeds small = NeedsOf(*model_, "tiny", options, 1, 8192 * kMiB);
  EXPECT_EQ(small.kv_bytes, kMiB);
  EXPECT_EQ(small.context_bytes, 112u * 2 * 2 * 3 * (16 + 4));
  options.dtype = "float32";
  options.kv_cache_dtype = "auto";
  const ModelNeeds floats = NeedsOf(*model_, "tiny", options, 1, 8192 * kMiB);
  EXPECT_EQ(floats.context_bytes, 112u * 2 * 2 * 3 * 16 * 4);
  EXPECT_GT(floats.weight_bytes, 3 * small.weight_bytes);
}

}  // namespace
}  // namespace flotilla
