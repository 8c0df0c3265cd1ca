// Plays any process of a cluster for the launcher's tests, by the name it is started under
// (flotilla-scheduler, -worker, -detokenizer, -router): takes the same flags, keeps the control
// segment's contract, serves metrics, binds ports, and ends on SIGTERM. It does no work.
//
// $FLOTILLA_FAKE_DIR/events gets a line at each start and stop ("start worker-0 PID", "stop …"),
// $FLOTILLA_FAKE_DIR/<name> may say how to misbehave, read at each start:
//   exit2 | exit1   end at once, with a reason on stderr
//   peer-lost       ends at once, as one whose peer on another host is gone
//   stuck           never becomes ready
//   ignore-term     does not end on SIGTERM
//   late-term       ends a little after --drain-grace-ms, as one that ends its streams then
//   silent-metrics  takes a scrape's connection and never answers
//   hang-in-load    stops for good before it has loaded
//   hang-in-warmup  a worker that stops for good once it is admitted
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/exit_status.h"
#include "common/base/listen.h"
#include "common/base/metrics.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

constexpr int kTickMs = 10;
constexpr int kLateMs = 200;

std::string Folder() {
  const char* folder = getenv("FLOTILLA_FAKE_DIR");
  CHECK(folder != nullptr);
  return folder;
}

class Fake {
 public:
  Fake(int argc, char** argv) : argc_(argc), argv_(argv), dir_(Folder()) {
    const std::string program = argv[0];
    role_ = program.substr(program.rfind("flotilla-") + 9);
    name_ = role_ == "worker" ? "worker-" + Flag("--rank") : role_;
    std::ifstream(dir_ + "/" + name_) >> misbehaviour_;
  }

  int Run() {
    if (argv_[argc_ - 1] == std::string("--check")) {
      if (misbehaviour_ != "bad-flags") return 0;
      return Fail("flotilla-router: --nope: not to my taste\nRun with --help for more.", 2);
    }
    Record("start");
    if (misbehaviour_ == "exit2") return Fail("model: not to my taste", 2);
    if (misbehaviour_ == "exit1") return Fail("out of luck", 1);
    if (misbehaviour_ == "peer-lost") return Fail("the rank is lost", kExitPeerLost);
    BlockSigterm();
    if (!OpenMetrics() || !OpenControl()) return 2;
    if (role_ == "router" && !OpenPorts()) return 2;
    while (!SigtermWithin(kTickMs)) Beat();
    if (misbehaviour_ == "late-term")
      poll(nullptr, 0, std::atoi(Flag("--drain-grace-ms").c_str()) + kLateMs);
    if (slot_ != nullptr) ReplicaControl::SetState(slot_, ProcessState::kStopping);
    Record("stop");
    return 0;
  }

 private:
  std::string Flag(const std::string& name) const {
    for (int i = 1; i + 1 < argc_; ++i) {
      if (name == argv_[i]) return argv_[i + 1];
    }
    return {};
  }

  int Fail(const char* reason, int code) const {
    std::fprintf(stderr, "%s\n", reason);
    return code;
  }

  void Record(const char* what) const {
    const std::string line =
        std::string(what) + " " + name_ + " " + std::to_string(getpid()) + "\n";
    const UniqueFd file(
        open((dir_ + "/events").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (write(file.get(), line.data(), line.size()) < 0) std::abort();
  }

  void BlockSigterm() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(signalfd(-1, &set, SFD_CLOEXEC));
  }

  bool SigtermWithin(int timeout_ms) const {
    pollfd entry{signals_.get(), POLLIN, 0};
    if (poll(&entry, 1, timeout_ms) <= 0) return false;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) < 0) std::abort();
    return misbehaviour_ != "ignore-term";
  }

  bool OpenMetrics() {
    const std::string path = Flag("--metrics-socket");
    if (misbehaviour_ == "silent-metrics") {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof(address.sun_path) - 1);
      silent_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      return bind(silent_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
             listen(silent_.get(), 4) == 0;
    }
    registry_ = std::make_shared<prometheus::Registry>();
    const std::string prefix = "flotilla_" + role_;
    MetricSpec fakes{prefix + "_fakes_total", "Fakes that were counted."};
    if (role_ == "worker") fakes.labels["rank"] = Flag("--rank");
    AddCounter(registry_.get(), fakes).Increment();
    AddHistogram(registry_.get(), {prefix + "_fake_seconds", "Time of fakes, in seconds."},
                 {0.1, 1})
        .Observe(0.5);
    auto server = MetricsServer::Start(path, name_, registry_);
    if (server.ok()) metrics_ = *std::move(server);
    return metrics_ != nullptr;
  }

  bool OpenControl() {
    if (role_ == "router") return true;
    auto control = ReplicaControl::Map(UniqueFd(std::atoi(Flag("--control-fd").c_str())));
    if (!control.ok()) {
      std::fprintf(stderr, "%s\n", control.status().ToString().c_str());
      return false;
    }
    control_.emplace(*std::move(control));
    ReplicaControlBlock* block = control_->operator->();
    slot_ = role_ == "scheduler"     ? &block->scheduler
            : role_ == "detokenizer" ? &block->detokenizer
                                     : &block->workers[std::atoi(Flag("--rank").c_str())];
    ReplicaControl::SetState(slot_, ProcessState::kLoading);
    if (misbehaviour_ == "hang-in-load") raise(SIGSTOP);
    return true;
  }

  bool OpenPorts() {
    const std::string host = Flag("--host");
    uint16_t http = 0, grpc = 0;
    auto http_fd = ListenTcp(host, static_cast<uint16_t>(std::stoi(Flag("--port"))), &http);
    auto grpc_fd = ListenTcp(host, static_cast<uint16_t>(std::stoi(Flag("--grpc-port"))), &grpc);
    if (!http_fd.ok() || !grpc_fd.ok()) {
      std::fprintf(stderr, "port in use\n");
      return false;
    }
    http_ = *std::move(http_fd);
    grpc_ = *std::move(grpc_fd);
    if (misbehaviour_ == "stuck") return true;
    const std::string line =
        "READY http=" + std::to_string(http) + " grpc=" + std::to_string(grpc) + "\n";
    const UniqueFd notify(std::atoi(Flag("--notify-fd").c_str()));
    return write(notify.get(), line.data(), line.size()) > 0;
  }

  // One turn of the process's loop: heartbeat, and its part in the start of an epoch.
  void Beat() {
    if (slot_ == nullptr) return;
    slot_->heartbeat_ns.store(RealClock::Now(), std::memory_order_relaxed);
    if (misbehaviour_ == "stuck") return;
    if (role_ == "worker") {
      const bool admitted = slot_->admitted.load() == slot_->incarnation.load();
      if (admitted && misbehaviour_ == "hang-in-warmup") {
        ReplicaControl::SetState(slot_, ProcessState::kWarmup);
        raise(SIGSTOP);
      }
      ReplicaControl::SetState(slot_, admitted ? ProcessState::kReady : ProcessState::kLoaded);
    } else if (role_ == "detokenizer") {
      ReplicaControl::SetState(slot_, ProcessState::kReady);
    } else {
      Admit();
    }
  }

  void Admit() {
    ReplicaControlBlock* block = control_->operator->();
    bool ready = ReplicaControl::State(block->detokenizer) == ProcessState::kReady;
    for (uint32_t rank = 0; rank < block->tp_size; ++rank) {
      ProcessSlot& worker = block->workers[rank];
      if (ReplicaControl::State(worker) == ProcessState::kLoaded)
        worker.admitted.store(worker.incarnation.load());
      ready = ready && ReplicaControl::State(worker) == ProcessState::kReady;
    }
    if (ready) ReplicaControl::SetState(slot_, ProcessState::kReady);
  }

  const int argc_;
  char** const argv_;
  const std::string dir_;
  std::string role_, name_, misbehaviour_;
  UniqueFd signals_, silent_, http_, grpc_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::unique_ptr<MetricsServer> metrics_;
  std::optional<ReplicaControl> control_;
  ProcessSlot* slot_ = nullptr;
};

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Fake(argc, argv).Run(); }
