#include "shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "shm/replica_control.h"

namespace flotilla {
namespace {

std::set<std::string> DevShm() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error))
    names.insert(entry.path().string());
  return names;
}

UniqueFd Dup(int fd) { return UniqueFd(dup(fd)); }

TEST(SegmentTest, IsZeroedSealedAndNameless) {
  const auto before = DevShm();
  auto segment = Segment::Create("test", 5000);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->size(), 8192u);
  const char* bytes = static_cast<const char*>(segment->data());
  EXPECT_TRUE(std::all_of(bytes, bytes + segment->size(), [](char c) { return c == 0; }));
  EXPECT_EQ(ftruncate(segment->fd(), 0), -1) << "shrinking is sealed";
  EXPECT_EQ(ftruncate(segment->fd(), 1 << 20), -1) << "growing is sealed";
  EXPECT_EQ(fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "the seals are sealed";
  EXPECT_EQ(fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  for (const std::string& name : DevShm()) EXPECT_TRUE(before.count(name)) << name;
}

TEST(SegmentTest, IsSharedThroughItsDescriptor) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_TRUE(segment.ok());
  UniqueFd inherited = Dup(segment->fd());
  ASSERT_EQ(fcntl(inherited.get(), F_SETFD, 0), 0);
  const int fd = inherited.get();
  auto other = Segment::Map(std::move(inherited), 4096);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << "closed again before the next exec";
  EXPECT_NE(other->data(), segment->data());
  std::memcpy(segment->data(), "seen", sizeof("seen"));
  EXPECT_STREQ(static_cast<char*>(other->data()), "seen");
}

TEST(SegmentTest, CreateRefusesAbsurdSizes) {
  EXPECT_FALSE(Segment::Create("none", 0).ok());
  EXPECT_FALSE(Segment::Create("huge", SIZE_MAX).ok());
}

TEST(SegmentTest, MapRefusesForeignDescriptors) {
  EXPECT_FALSE(Segment::Map(UniqueFd(), 0).ok());
  EXPECT_FALSE(Segment::Map(UniqueFd(open("/dev/null", O_RDWR)), 0).ok());
  EXPECT_FALSE(Segment::Map(UniqueFd(open("/proc/self/exe", O_RDONLY)), 0).ok());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  EXPECT_FALSE(Segment::Map(UniqueFd(pipe_fds[0]), 0).ok());
  EXPECT_FALSE(Segment::Map(UniqueFd(pipe_fds[1]), 0).ok());
  FILE* file = tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(ftruncate(fileno(file), 4096), 0);
  EXPECT_FALSE(Segment::Map(Dup(fileno(file)), 0).ok());
  fclose(file);

  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_FALSE(Segment::Map(Dup(unsealed.get()), 0).ok());
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_FALSE(Segment::Map(Dup(unsealed.get()), 0).ok()) << "seals that may still change";
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SEAL), 0);
  EXPECT_TRUE(Segment::Map(Dup(unsealed.get()), 4096).ok());
  EXPECT_FALSE(Segment::Map(Dup(unsealed.get()), 4097).ok()) << "too small";

  UniqueFd empty(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_FALSE(Segment::Map(std::move(empty), 0).ok());
}

TEST(SegmentTest, ClosesAcrossExecUnlessCleared) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_TRUE(segment.ok());
  const std::string path = "/proc/self/fd/" + std::to_string(segment->fd());
  const auto present_after_exec = [&](bool clear) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (clear) fcntl(segment->fd(), F_SETFD, 0);
      execl("/usr/bin/test", "test", "-e", path.c_str(), nullptr);
      _exit(9);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 9);
    return WEXITSTATUS(status) == 0;
  };
  EXPECT_FALSE(present_after_exec(false));
  EXPECT_TRUE(present_after_exec(true));
}

TEST(ReplicaControlTest, IsMappedByItsMembers) {
  auto control = ReplicaControl::Create(3);
  ASSERT_TRUE(control.ok()) << control.status();
  auto member = ReplicaControl::Map(Dup(control->segment().fd()));
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ((*member)->tp_size, 3u);
  EXPECT_EQ(ReplicaControl::State((*member)->workers[2]), ProcessState::kAbsent);
  ReplicaControl::SetState(&(*member)->workers[2], ProcessState::kReady);
  EXPECT_EQ(ReplicaControl::State((*control)->workers[2]), ProcessState::kReady);
  const uint32_t before = (*control)->doorbell.load();
  ReplicaControl::Ring(&(*member)->doorbell);
  EXPECT_EQ((*control)->doorbell.load(), before + 1);
}

TEST(ReplicaControlTest, RefusesWrongSegments) {
  EXPECT_FALSE(ReplicaControl::Create(0).ok());
  EXPECT_FALSE(ReplicaControl::Create(kMaxRanks + 1).ok());
  auto blank = Segment::Create("blank", sizeof(ReplicaControlBlock));
  EXPECT_EQ(ReplicaControl::Map(Dup(blank->fd())).status().code(),
            absl::StatusCode::kFailedPrecondition);
  auto control = ReplicaControl::Create(1);
  (*control)->tp_size = 17;
  EXPECT_FALSE(ReplicaControl::Map(Dup(control->segment().fd())).ok());
  (*control)->tp_size = 1;
  (*control)->version++;
  EXPECT_FALSE(ReplicaControl::Map(Dup(control->segment().fd())).ok());
}

TEST(ReplicaControlTest, CarriesTheBackendsName) {
  auto control = ReplicaControl::Create(2);
  ASSERT_TRUE(control.ok()) << control.status();
  WorkerReport& report = (*control)->reports[1];
  EXPECT_EQ(ReplicaControl::BackendName(report), "unknown");
  for (const std::string& name : {std::string("cpu-float32-kv-bfloat16"), std::string("x"),
                                  std::string(kMaxBackendName, 'a')}) {
    ReplicaControl::SetBackend(&report, name);
    EXPECT_EQ(ReplicaControl::BackendName(report), name);
  }
  // Bytes of another process: no end, or no name.
  for (auto& word : report.backend) word = 0x6161616161616161;
  EXPECT_EQ(ReplicaControl::BackendName(report), "unknown");
  ReplicaControl::SetBackend(&report, "a\nb");
  EXPECT_EQ(ReplicaControl::BackendName(report), "unknown");
}

TEST(ReplicaControlTest, StatesHaveNames) {
  for (uint32_t s = 0; s <= 7; ++s)
    EXPECT_STRNE(ProcessStateName(static_cast<ProcessState>(s)), "unknown") << s;
  EXPECT_STREQ(ProcessStateName(static_cast<ProcessState>(99)), "unknown");
}

}  // namespace
}  // namespace flotilla
