#include "deploy/launcher/flight_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "deploy/launcher/flight.h"
#include "shm/flight_ring.h"
#include "tests/support/temp_folder.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A folder like /proc with the processes that a test adds, whose segments are this process'.
class FlightCommandTest : public ::testing::Test {
 protected:
  FlightCommandTest() {
    options_.dir = (proc() / "saved").string();
    fs::create_directories(proc() / "self");  // not a number
    Process(7, {"/usr/bin/flotilla", "engine", "--flight-fd", "3"});
  }

  fs::path proc() const { return folder_.path(); }

  void Process(int pid, const std::vector<std::string>& argv) {
    fs::create_directories(proc() / std::to_string(pid) / "fd");
    std::ofstream cmdline(proc() / std::to_string(pid) / "cmdline", std::ios::binary);
    for (const std::string& word : argv) cmdline << word << '\0';
  }

  Segment Scheduler(int pid, const std::string& replica, const std::string& record) {
    Segment segment = *Segment::Create("flight-test", kMinFlightRingBytes);
    FlightRingWriter ring = *FlightRingWriter::Attach(&segment);
    EXPECT_TRUE(record.empty() || ring.Append(record));
    Process(pid, {"/usr/bin/flotilla-scheduler", "--replica-id", replica, "--flight-fd", "5"});
    fs::create_symlink("/proc/self/fd/" + std::to_string(segment.fd()),
                       proc() / std::to_string(pid) / "fd/5");
    return segment;
  }

  StatusOr<std::vector<std::string>> Find() { return FindFlight(options_, proc().string()); }

  testing::TempFolder folder_;
  FlightOptions options_;
};

TEST_F(FlightCommandTest, ReadsTheOneThatRuns) {
  EXPECT_TRUE(absl::IsNotFound(Find().status()));
  const Segment segment = Scheduler(20, "r0", "a plan");
  Process(21, {"flotilla-scheduler", "--replica-id", "r9", "--flight-fd", "-1"});  // has none
  EXPECT_THAT(*Find(), ElementsAre("a plan"));
  EXPECT_EQ(FlightList(options_, proc().string()), "running r0 pid 20\n");
  options_.pid = 21;
  EXPECT_TRUE(absl::IsNotFound(Find().status()));
}

TEST_F(FlightCommandTest, OfSeveralThePidSaysWhich) {
  const Segment first = Scheduler(20, "r0", "a"), second = Scheduler(19, "r1", "b");
  EXPECT_THAT(std::string(Find().status().message()), HasSubstr("20 (r0), 19 (r1)"));
  options_.pid = 19;
  EXPECT_THAT(*Find(), ElementsAre("b"));
}

TEST_F(FlightCommandTest, WhatIsNoRecorderIsAnError) {
  const Segment segment = Scheduler(20, "r0", "");
  EXPECT_TRUE(absl::IsNotFound(Find().status())) << "nothing recorded";
  fs::remove(proc() / "20/fd/5");
  EXPECT_FALSE(Find().ok());
  fs::create_symlink("/dev/null", proc() / "20/fd/5");
  EXPECT_FALSE(Find().ok());
}

TEST_F(FlightCommandTest, ReadsWhatWasSaved) {
  options_.saved = "last";
  EXPECT_TRUE(absl::IsNotFound(Find().status()));
  fs::create_directories(options_.dir);
  const auto now = fs::file_time_type::clock::now();
  const std::vector<std::pair<std::string, int>> files = {{"r0-2", 3}, {"r0-1", 2}, {"r1-1", 1}};
  for (const auto& [name, age] : files) {
    const fs::path path = fs::path(options_.dir) / (name + kFlightSuffix);
    ASSERT_TRUE(WriteFlightFile(path.string(), {name}).ok());
    fs::last_write_time(path, now - std::chrono::seconds(age));
  }
  EXPECT_THAT(*Find(), ElementsAre("r1-1"));
  options_.saved = "r0-2.flight";
  EXPECT_THAT(*Find(), ElementsAre("r0-2"));
  options_.saved = "../saved/r0-2.flight";
  EXPECT_TRUE(absl::IsNotFound(Find().status()));
  EXPECT_THAT(FlightList(options_, proc().string()),
              MatchesRegex("saved r0-2.flight [0-9]+ bytes\nsaved r0-1.flight .*"
                           "\nsaved r1-1.flight .*\n"));
}

}  // namespace
}  // namespace flotilla
