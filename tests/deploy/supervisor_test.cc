// The launcher's behaviour as a whole, over fake processes: start, restart, giving up, stopping.
#include "deploy/launcher/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "common/base/clock.h"
#include "common/base/listen.h"
#include "tests/deploy/launcher_fixture.h"

namespace flotilla {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

class SupervisorTest : public LauncherTest {
 protected:
  void ItReplacesAWorkerAndStops() {
    kill(Pids("worker-0").front(), SIGKILL);
    EXPECT_TRUE(WaitUntil([&] { return Pids("worker-0").size() >= 2; })) << "it does not, or stops";
    Kill(SIGTERM);
    EXPECT_EQ(Wait(), 0);
  }
};

size_t IndexOf(const std::vector<std::pair<std::string, std::string>>& events,
               const std::string& what, const std::string& process) {
  return static_cast<size_t>(std::find(events.begin(), events.end(), std::pair{what, process}) -
                             events.begin());
}

TEST_F(SupervisorTest, StartsInOrderAndSaysReadyOnce) {
  Start({"--tp", "2"});
  const std::string ready = ReadyLine();
  EXPECT_THAT(ready, StartsWith("ready http=http://127.0.0.1:"));
  EXPECT_THAT(ready, HasSubstr(" grpc=127.0.0.1:"));
  EXPECT_THAT(ready, HasSubstr("/metrics"));
  const auto events = Events();
  EXPECT_THAT(events, SizeIs(5));
  EXPECT_EQ(IndexOf(events, "start", "router"), 4u) << "the router comes last";
}

TEST_F(SupervisorTest, ReplicasHaveTheNameTheyAreGiven) {
  Start({"--tp", "1", "--replicas", "2", "--replica-name", "left"});
  const int port = PortOf(ReadyLine(), "metrics");
  EXPECT_TRUE(WaitUntil([&] {
    const std::string page = HttpGet(port, "/metrics");
    return page.find("{process=\"scheduler\",replica=\"left-0\"} 1") != std::string::npos &&
           page.find("{process=\"scheduler\",replica=\"left-1\"} 1") != std::string::npos;
  }));
}

TEST_F(SupervisorTest, AnEngineHasTheNameItIsGiven) {
  Start({"--tp", "1", "--replica-name", "left"}, "engine");
  const int port = PortOf(ReadyLine(), "metrics");
  EXPECT_TRUE(WaitUntil([&] {
    const std::string page = HttpGet(port, "/metrics");
    return page.find("{process=\"scheduler\",replica=\"left\"} 1") != std::string::npos;
  }));
}

TEST_F(SupervisorTest, ANameThatIsNoNameIsRefused) {
  for (const char* name : {"", "a/b", ".a", "a b", "\u00e9"}) {
    Start({"--replica-name", name});
    EXPECT_EQ(Wait(), 2) << name;
  }
}

TEST_F(SupervisorTest, StopsRouterThenSchedulerThenTheRest) {
  Start({"--tp", "2"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  const auto events = Events();
  ASSERT_THAT(events, SizeIs(10));
  EXPECT_EQ(IndexOf(events, "stop", "router"), 5u);
  EXPECT_EQ(IndexOf(events, "stop", "scheduler"), 6u);
  EXPECT_THAT(RuntimeDirs(), IsEmpty());
}

TEST_F(SupervisorTest, KillsWhatIgnoresSigtermAfterTheGrace) {
  Misbehave("router", "ignore-term");
  Misbehave("worker-0", "ignore-term");
  Start({"--tp", "1", "--shutdown-timeout", "0.1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Count("stop", "scheduler"), 1u);
  EXPECT_EQ(Count("stop", "router"), 0u);
}

TEST_F(SupervisorTest, ASchedulerThatEndsItsStreamsAtTheDeadlineIsNotKilled) {
  Misbehave("scheduler", "late-term");
  Start({"--tp", "1", "--shutdown-timeout", "2.2"}, "engine");
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Count("stop", "scheduler"), 1u);
}

// What it has left when its router has ended nobody can get.
TEST_F(SupervisorTest, BehindARouterTheSchedulerDoesNotGetTheGraceAnew) {
  Misbehave("scheduler", "late-term");
  Start({"--tp", "1", "--shutdown-timeout", "600"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Count("stop", "scheduler"), 1u);
}

TEST_F(SupervisorTest, AStalledReaderOfItsLogHoldsNothingUp) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  stderr_.reset(ends[1]);
  fcntl(stderr_.get(), F_SETFL, O_NONBLOCK);
  while (write(stderr_.get(), "x", 1) == 1) continue;
  fcntl(stderr_.get(), F_SETFL, 0);  // the launcher's, too
  Start({"--tp", "1", "--log-level", "debug"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  ItReplacesAWorkerAndStops();
}

TEST_F(SupervisorTest, UnderNohupAHangupChangesNothing) {
  ignored_signals_ = {SIGHUP};
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGHUP);
  ItReplacesAWorkerAndStops();
}

TEST_F(SupervisorTest, AHangupStopsItOtherwise) {
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGHUP);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(SupervisorTest, SeesDeathsWhereChildrenWereIgnored) {
  ignored_signals_ = {SIGCHLD};
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  ItReplacesAWorkerAndStops();
}

// Its scheduler still has requests to finish.
TEST_F(SupervisorTest, AWorkerThatDiesDuringTheGraceIsReplaced) {
  Misbehave("scheduler", "ignore-term");
  Start({"--tp", "2", "--shutdown-timeout", "3"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  ASSERT_TRUE(WaitUntil([&] { return Count("stop", "router") == 1; }));
  kill(Pids("worker-1").front(), SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return Pids("worker-1").size() >= 2; }));
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(RuntimeDirs(), IsEmpty());
}

TEST_F(SupervisorTest, TheRoutersFlagsAreCheckedBeforeAnythingStarts) {
  Misbehave("router", "bad-flags");
  Start({"--tp", "1"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_THAT(Stderr(), HasSubstr("error: router: --nope: not to my taste\n"));
}

TEST_F(SupervisorTest, WhatExitsWith2AtTheStartIsNotStartedAgain) {
  Misbehave("worker-0", "exit2");
  Misbehave("scheduler", "ignore-term");  // it takes seconds to end
  Start({"--tp", "1"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_EQ(Count("start", "worker-0"), 1u);
}

TEST_F(SupervisorTest, ASecondSigtermChangesNothing) {
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGTERM);
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Count("stop", "worker-0"), 1u);
}

TEST_F(SupervisorTest, SecondCtrlCKillsAtOnce) {
  Misbehave("router", "ignore-term");
  Start({"--tp", "1", "--shutdown-timeout", "3600"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGINT);
  // Again and again, since one that follows the first too closely is taken for the same.
  EXPECT_TRUE(WaitUntil([&] {
    Kill(SIGINT);
    return Stderr().find("stopping at once") != std::string::npos;
  }));
  Wait();
  EXPECT_EQ(Count("stop", "scheduler"), 0u);
}

TEST_F(SupervisorTest, RestartsAWorkerAloneWithTheNextIncarnation) {
  Start({"--tp", "2"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  kill(Pids("worker-1").front(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return Pids("worker-1").size() >= 2; }));
  EXPECT_THAT(Pids("worker-0"), SizeIs(1));
  EXPECT_THAT(Pids("scheduler"), SizeIs(1));
  EXPECT_THAT(Stderr(), HasSubstr("was killed by signal 9"));
}

TEST_F(SupervisorTest, SchedulersDeathRestartsItsWholeReplicaOnly) {
  Start({"--tp", "1", "--replicas", "2"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  kill(Pids("scheduler").front(), SIGKILL);
  for (const char* process : {"scheduler", "worker-0", "detokenizer"}) {
    EXPECT_TRUE(WaitUntil([&] { return Pids(process).size() >= 3; })) << process;
  }
  EXPECT_THAT(Pids("router"), SizeIs(1));
}

TEST_F(SupervisorTest, RouterComesBackOnItsPorts) {
  Start({"--tp", "1"});
  const std::string ready = ReadyLine();
  kill(Pids("router").front(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return Pids("router").size() >= 2; }));
  uint16_t bound = 0;
  const auto port = static_cast<uint16_t>(PortOf(ready, "http"));
  EXPECT_TRUE(WaitUntil([&] {
    return absl::IsAlreadyExists(ListenTcp("127.0.0.1", port, &bound).status());
  })) << "the router does not listen on its port again";
}

// A second fake can't have the first one's ports.
TEST_F(SupervisorTest, ASuccessorOfTheRouterThatFailsChangesNothing) {
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Kill(SIGUSR2);
  EXPECT_TRUE(WaitUntil([&] {
    return Stderr().find("the router's successor exited with status") != std::string::npos;
  }));
  EXPECT_THAT(Stderr(), HasSubstr("port in use"));
  EXPECT_THAT(Pids("router"), SizeIs(2));
  kill(Pids("router").front(), SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return Pids("router").size() >= 3; }));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Count("stop", "router"), 1u);
}

TEST_F(SupervisorTest, GivesUpOnAConfigurationErrorWithTheProcessesOwnWords) {
  Misbehave("worker-0", "exit2");
  Start({"--tp", "1"});
  EXPECT_EQ(ReadyLine(), "");
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(Stderr(), HasSubstr("flotilla: error: worker-0: model: not to my taste"));
}

TEST_F(SupervisorTest, GivesUpAfterSeveralFailuresAtStart) {
  Misbehave("detokenizer", "exit1");
  Start({"--tp", "1"});
  EXPECT_EQ(ReadyLine(), "");
  EXPECT_EQ(Wait(), 1);
  EXPECT_EQ(Count("start", "detokenizer"), Supervisor::kMaxStartFailures);
  EXPECT_THAT(Stderr(), HasSubstr("flotilla: error: detokenizer: out of luck"));
}

TEST_F(SupervisorTest, OnceServingAFailingProcessIsRetriedAndComesBack) {
  Start({"--tp", "1"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Misbehave("detokenizer", "exit2");
  kill(Pids("detokenizer").front(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return Pids("detokenizer").size() >= 3; }));
  Behave("detokenizer");
  const size_t before = Pids("detokenizer").size();
  ASSERT_TRUE(WaitUntil([&] { return Pids("detokenizer").size() > before; }));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(SupervisorTest, WatchdogReplacesAStoppedProcess) {
  Start({"--tp", "1", "--watchdog-timeout", "4"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  kill(Pids("detokenizer").front(), SIGSTOP);
  ASSERT_TRUE(WaitUntil([&] { return Pids("detokenizer").size() >= 2; }));
  EXPECT_THAT(Pids("scheduler"), SizeIs(1));
  EXPECT_THAT(Stderr(), HasSubstr("no heartbeat, killing it name=detokenizer"));
  EXPECT_THAT(Stderr(), HasSubstr("state name=worker-0 state=ready"));
}

TEST_F(SupervisorTest, WatchdogReplacesAProcessThatNeverLoads) {
  Start({"--tp", "1", "--startup-timeout", "5"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Misbehave("worker-0", "hang-in-load");
  kill(Pids("worker-0").front(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return Pids("worker-0").size() >= 2; }));
  Behave("worker-0");
  ASSERT_TRUE(WaitUntil([&] { return Pids("worker-0").size() >= 3; }));
  EXPECT_THAT(Stderr(), HasSubstr("no heartbeat, killing it name=worker-0"));
  EXPECT_THAT(Pids("scheduler"), SizeIs(1));
}

TEST_F(SupervisorTest, WatchdogReplacesAWorkerThatHangsInItsWarmup) {
  Start({"--tp", "2", "--watchdog-timeout", "4"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  Misbehave("worker-1", "hang-in-warmup");
  kill(Pids("worker-1").front(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return Pids("worker-1").size() >= 2; }));
  Behave("worker-1");
  ASSERT_TRUE(WaitUntil([&] { return Pids("worker-1").size() >= 3; }));
  EXPECT_THAT(Stderr(), HasSubstr("no heartbeat, killing it name=worker-1"));
  EXPECT_THAT(Stderr(), HasSubstr("state name=worker-1 state=warmup"));
  EXPECT_THAT(Pids("scheduler"), SizeIs(1));
}

TEST_F(SupervisorTest, SigkillOfTheLauncherLeavesNothing) {
  auto shm_entries = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().string().find("flotilla") != std::string::npos)
        names.insert(entry.path().string());
    }
    return names;
  };
  const std::set<std::string> before = shm_entries();
  Start({"--tp", "2", "--replicas", "2"});
  ASSERT_THAT(ReadyLine(), StartsWith("ready"));
  std::vector<UniqueFd> pidfds;
  for (const char* process : {"router", "scheduler", "worker-0", "worker-1", "detokenizer"}) {
    for (const pid_t pid : Pids(process))
      pidfds.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
  ASSERT_THAT(pidfds, SizeIs(9));
  Kill(SIGKILL);
  const int64_t deadline = RealClock::Now() + 20 * kNsPerSecond;
  for (const UniqueFd& pidfd : pidfds) {
    pollfd entry{pidfd.get(), POLLIN, 0};
    const int64_t left = std::max<int64_t>(0, deadline - RealClock::Now());
    EXPECT_EQ(poll(&entry, 1, static_cast<int>(left / kNsPerMs)), 1) << "a process is left";
  }
  EXPECT_EQ(shm_entries(), before);
  EXPECT_EQ(Wait(), 128 + SIGKILL);

  // The next launcher clears up after the dead one.
  ASSERT_THAT(RuntimeDirs(), SizeIs(1));
  const std::string stale = RuntimeDirs().front();
  Start({"--tp", "1"});
  ASSERT_TRUE(WaitUntil([&] {
    const auto dirs = RuntimeDirs();
    return dirs.size() == 1 && dirs.front() != stale;
  }));
}

TEST_F(SupervisorTest, SigkillAtRandomMomentsOfTheStart) {
  for (int i = 0; i < 5; ++i) {
    const size_t wanted = Events().size() + static_cast<size_t>(i);
    Start({"--tp", "2"});
    WaitUntil([&] { return Events().size() >= wanted; });
    Kill(SIGKILL);
    Wait();
    // We are the subreaper: no child is left once waitpid says so.
    EXPECT_TRUE(WaitUntil([] { return waitpid(-1, nullptr, WNOHANG) < 0; }, 20));
  }
}

TEST_F(SupervisorTest, SaysWhichPortIsInUse) {
  uint16_t taken = 0;
  const auto holder = ListenTcp("127.0.0.1", 0, &taken);
  ASSERT_TRUE(holder.ok());
  Start({"--tp", "1", "--port", std::to_string(taken)});
  EXPECT_EQ(Wait(), 1) << "it may be free later";
  EXPECT_THAT(Stderr(), HasSubstr("port " + std::to_string(taken) +
                                  " is in use; choose another "
                                  "with --port"));
  EXPECT_THAT(Events(), IsEmpty());
}

TEST_F(SupervisorTest, RefusesWhatIsNoModel) {
  model_ = dir() + "/bin/none.gguf";
  Start({});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(Stderr(), HasSubstr("flotilla: error: --model: there is no file"));
  EXPECT_THAT(Events(), IsEmpty());
}

TEST_F(SupervisorTest, RefusesCertificatesThatAreWrongBeforeAnythingStarts) {
  Start({"--tls-cert-file", "/none/tls.crt"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(Stderr(), HasSubstr("flotilla: error: --tls-cert-file needs --tls-key-file"));
  EXPECT_THAT(Events(), IsEmpty());
}

TEST_F(SupervisorTest, RefusesMoreRanksThanQueryHeads) {
  Start({"--tp", "10"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(Stderr(), HasSubstr("--tp: 10 ranks, but the model has 9 query heads"));
}

TEST_F(SupervisorTest, EngineHasNoRouter) {
  Start({"--tp", "1"}, "engine");
  const std::string ready = ReadyLine();
  EXPECT_THAT(ready, StartsWith("ready grpc=127.0.0.1:"));
  EXPECT_EQ(HttpGet(PortOf(ready, "metrics"), "/health/live"), "alive\n");
  EXPECT_EQ(HttpGet(PortOf(ready, "metrics"), "/health/ready"), "ready\n");
  EXPECT_EQ(Count("start", "router"), 0u);
  Kill(SIGUSR2);
  EXPECT_TRUE(
      WaitUntil([&] { return Stderr().find("no router serves here") != std::string::npos; }));
  Kill(SIGTERM);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(SupervisorTest, OneMetricsPageHasEveryProcessAndSurvivesASilentOne) {
  Misbehave("worker-1", "silent-metrics");
  Start({"--tp", "2", "--replicas", "2"});
  const std::string ready = ReadyLine();
  std::string page;
  const auto shows = [&](const char* sample) { return page.find(sample) != std::string::npos; };
  // A process that does not answer in time is left out.
  WaitUntil([&] {
    page = HttpGet(PortOf(ready, "metrics"), "/metrics");
    return shows("router_fakes_total 1") && shows("scheduler_fakes_total{replica=\"r0\"}") &&
           shows("scheduler_fakes_total{replica=\"r1\"}") &&
           shows("worker_fakes_total{rank=\"0\",replica=\"r1\"}");
  });
  for (const char* sample :
       {"flotilla_router_fakes_total 1", "flotilla_scheduler_fakes_total{replica=\"r0\"} 1",
        "flotilla_scheduler_fakes_total{replica=\"r1\"} 1",
        "flotilla_worker_fakes_total{rank=\"0\",replica=\"r1\"} 1",
        "flotilla_launcher_process_up{process=\"worker-1\",replica=\"r0\"} 1",
        "flotilla_build_info{process=\"launcher\""})
    EXPECT_THAT(page, HasSubstr(sample));
  EXPECT_EQ(page.find("flotilla_worker_fakes_total{rank=\"1\""), std::string::npos);
  EXPECT_EQ(page.find("# TYPE process_open_fds"), page.rfind("# TYPE process_open_fds"));
  for (const char* other : {"/metrics?names=other", "/", "/metricsx"})
    EXPECT_THAT(HttpGet(PortOf(ready, "metrics"), other), HasSubstr("here are /metrics")) << other;
}

}  // namespace
}  // namespace flotilla
