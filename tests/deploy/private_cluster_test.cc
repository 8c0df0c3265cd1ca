// A start that fails, over scripts that play the launcher.
#include "deploy/launcher/private_cluster.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace flotilla {
namespace {

// What Start says of a launcher that prints `lines` and ends.
std::string ReasonAfter(const std::string& lines) {
  const std::string path = testing::TempDir() + "private_cluster_test-" + std::to_string(getpid());
  std::ofstream(path) << "#!/bin/sh\ncat >&2 <<'END'\n" << lines << "END\nexit 1\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const auto cluster = PrivateCluster::Start(path, {"engine"});
  std::filesystem::remove(path);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kUnavailable);
  return std::string(cluster.status().message());
}

TEST(PrivateClusterTest, TheReasonIsTheLastErrorAndNotWhatCameAfterIt) {
  EXPECT_EQ(ReasonAfter("flotilla: error: first\nflotilla: error: worker-0: no memory\n"
                        "[launcher] 13:05:17.530 warn  was killed while stopping\n"),
            "worker-0: no memory");
}

TEST(PrivateClusterTest, WithoutOneItIsTheLastLine) {
  EXPECT_EQ(ReasonAfter("one\nterminate called\n"), "terminate called");
  EXPECT_EQ(ReasonAfter(""), "the cluster did not start");
}

}  // namespace
}  // namespace flotilla
