#include "deploy/launcher/flight.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "shm/flight_ring.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

TEST(FlightTest, SavesAndKeepsTheNewestOfEachReplica) {
  const fs::path dir = fs::path(::testing::TempDir()) / StrCat("flight_test_", getpid()) / "deep";
  fs::remove_all(dir);
  auto segment = Segment::Create("flight-test", kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  EXPECT_TRUE(absl::IsNotFound(SaveFlightRecording(*segment, dir, "r0").status())) << "no ring";
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  EXPECT_TRUE(absl::IsNotFound(SaveFlightRecording(*segment, dir, "r0").status()));
  ASSERT_TRUE(ring.Append("what happened"));
  ASSERT_TRUE(SaveFlightRecording(*segment, dir, "r1").ok());
  ASSERT_TRUE(SaveFlightRecording(*segment, dir, "r0-2").ok());
  std::set<std::string> paths;
  std::string newest;
  while (paths.size() < kKeptFlightRecordings + 3) {  // a name a millisecond
    const auto path = SaveFlightRecording(*segment, dir, "r0");
    if (path.ok()) paths.insert(newest = *path);
  }
  size_t kept = 0, others = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    (entry.path().filename().string().starts_with("r0-20") ? kept : others) += 1;
  }
  EXPECT_EQ(kept, kKeptFlightRecordings);
  EXPECT_EQ(others, 2u);
  EXPECT_EQ(*ReadFlightFile(newest), std::vector<std::string>{"what happened"});
  fs::remove_all(dir.parent_path());
}

TEST(FlightTest, AFolderThatCantBeIsNamed) {
  auto segment = Segment::Create("flight-test", kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(FlightRingWriter::Attach(&*segment)->Append("x"));
  const Status status = SaveFlightRecording(*segment, "/proc/no/such", "r0").status();
  EXPECT_NE(std::string(status.message()).find("/proc/no/such"), std::string::npos) << status;
}

TEST(FlightTest, TheDefaultFolderIsTheUsers) {
  setenv("XDG_STATE_HOME", "/a", 1);
  EXPECT_EQ(DefaultFlightDir(), "/a/flotilla");
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", "/b", 1);
  EXPECT_EQ(DefaultFlightDir(), "/b/.local/state/flotilla");
}

TEST(FlightTest, TheRecorderGrowsWithTheRequestsThatMayRun) {
  EXPECT_EQ(DefaultFlightBytes(1, false), 4 << 20);
  EXPECT_EQ(DefaultFlightBytes(64, false), 16 << 20);
  EXPECT_EQ(DefaultFlightBytes(256, true), 64 << 20);
  EXPECT_EQ(DefaultFlightBytes(100'000, true), 128 << 20);
}

TEST(FlightTest, AGpusRecorderHasRoomForAKeyFrameOfALargeCache) {
  EXPECT_EQ(DefaultFlightBytes(1, true), 32 << 20);
}

}  // namespace
}  // namespace flotilla
