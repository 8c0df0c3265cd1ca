// ThreadSanitizer must report a relaxed store planted where data is published, and nothing when it
// is not: this is what the silence of the other tests under it is worth. Only in the tsan preset.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome RunProgram(const std::string& program, const std::string& what) {
  Outcome outcome;
  FILE* pipe = popen((program + " " + what + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    outcome.output.append(buffer, n);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class PlantedRaceTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedRaceTest, IsReported) {
  const Outcome outcome = RunProgram(FLOTILLA_RACE_PLANTED, GetParam());
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.output.find("ThreadSanitizer: data race"), std::string::npos) << outcome.output;
}

TEST_P(PlantedRaceTest, IsNotThereWithoutThePlant) {
  const Outcome outcome = RunProgram(FLOTILLA_RACE_CLEAN, GetParam());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, "done\n");
}

INSTANTIATE_TEST_SUITE_P(Both, PlantedRaceTest, testing::Values("ring", "collective"));

}  // namespace
