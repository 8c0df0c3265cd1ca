// Runs the real launcher over fake processes (tests/fakes/fake_process.cc), in a directory of its
// own. Waits poll with a deadline; nothing depends on how fast the machine is.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"

namespace flotilla {

// True as soon as `condition` is; false if it is not within `seconds`.
bool WaitUntil(const std::function<bool()>& condition, double seconds = 20);

class LauncherTest : public testing::Test {
 protected:
  LauncherTest();
  ~LauncherTest() override;

  // `flotilla <command> --bin-dir <fakes> --model <test model> <flags>`, ports 0 unless given.
  void Start(const std::vector<std::string>& flags, const std::string& command = "serve");
  // The first line on stdout; empty if stdout ended before.
  std::string ReadyLine();
  // "http=http://127.0.0.1:123" → 123
  static int PortOf(const std::string& ready_line, const std::string& key);
  void Kill(int signal) const;
  // Exit status; 128 + signal if killed by one.
  int Wait();

  void Misbehave(const std::string& process, const std::string& how) const;
  void Behave(const std::string& process) const;

  // From the fakes' log: pairs of ("start" | "stop", process) in order…
  std::vector<std::pair<std::string, std::string>> Events() const;
  // …and the pids that a process has had, oldest first.
  std::vector<pid_t> Pids(const std::string& process) const;
  size_t Count(const std::string& what, const std::string& process) const;
  std::string Stderr() const;
  const std::string& dir() const { return dir_; }
  // Directories of launchers under this test's XDG_RUNTIME_DIR.
  std::vector<std::string> RuntimeDirs() const;

  std::string model_;                 // default: $FLOTILLA_TEST_MODEL
  std::vector<int> ignored_signals_;  // as nohup has it
  UniqueFd stderr_;                   // its stderr, if not a file

 private:
  std::string dir_;
  pid_t pid_ = -1;
  UniqueFd stdout_;
  std::string stdout_text_;
};

// Body of GET path; empty if nobody answers.
std::string HttpGet(int port, const std::string& path);

}  // namespace flotilla
