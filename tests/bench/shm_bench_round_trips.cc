// A 256-byte message there and back between two processes: through step ring and result ring, and
// through what ZeroMQ and Boost.Interprocess have for it.
#include <unistd.h>

#include <boost/interprocess/ipc/message_queue.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/ring.h"
#include "shm/spin.h"
#include "tests/bench/shm_bench.h"

namespace flotilla {
namespace {

namespace bip = boost::interprocess;

constexpr size_t kMessageBytes = 256;
constexpr int64_t kSpinNs = 200 * kNsPerUs;
constexpr int64_t kGiveUpNs = 20 * kNsPerSecond;

// A process's end of a connection, opened after the fork.
class End {
 public:
  virtual ~End() = default;
  virtual void Send(const char* message) = 0;
  virtual void Receive(char* message) = 0;
};

class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::unique_ptr<End> Open(bool first) = 0;
};

// The scheduler's and the worker's end, with rings of the launcher's sizes.
class RingEnd final : public End {
 public:
  RingEnd(const Segment* out, const Segment* in, WaitPolicy wait)
      : writer_(*RingWriter::Attach(out)), reader_(*RingReader::Attach(in, 0, wait)) {}
  void Send(const char* message) override {
    CHECK_OK(writer_.Write({message, kMessageBytes}, RealClock::Now() + kGiveUpNs));
  }
  void Receive(char* message) override {
    const auto frame = reader_.Read(RealClock::Now() + kGiveUpNs);
    CHECK_OK(frame.status());
    CHECK(frame->size() == kMessageBytes);
    std::memcpy(message, frame->data(), kMessageBytes);
    reader_.Release();
  }

 private:
  RingWriter writer_;
  RingReader reader_;
};

class Rings final : public Contender {
 public:
  explicit Rings(WaitPolicy wait)
      : wait_(wait),
        steps_(Make("bench-steps", 4 << 20)),
        results_(Make("bench-results", 8 << 20)) {}
  std::unique_ptr<End> Open(bool first) override {
    return first ? std::make_unique<RingEnd>(&steps_, &results_, wait_)
                 : std::make_unique<RingEnd>(&results_, &steps_, wait_);
  }

 private:
  static Segment Make(const char* name, size_t bytes) {
    auto segment = Segment::Create(name, RingSegmentBytes(bytes));
    CHECK_OK(segment.status());
    CHECK_OK(InitRing(*segment, 1));
    return std::move(*segment);
  }
  WaitPolicy wait_;
  Segment steps_, results_;
};

class ZmqEnd final : public End {
 public:
  ZmqEnd(const std::string& address, bool first) : socket_(context_, zmq::socket_type::pair) {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(kGiveUpNs / kNsPerMs));
    first ? socket_.bind(address) : socket_.connect(address);
  }
  void Send(const char* message) override {
    CHECK(socket_.send(zmq::buffer(message, kMessageBytes)).has_value());
  }
  void Receive(char* message) override {
    const auto got = socket_.recv(zmq::buffer(message, kMessageBytes));
    CHECK(got.has_value() && got->untruncated_size == kMessageBytes);
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

class Zmq final : public Contender {
 public:
  // An abstract address: no file that a kill could leave behind.
  std::unique_ptr<End> Open(bool first) override {
    return std::make_unique<ZmqEnd>(address_, first);
  }

 private:
  const std::string address_ = StrCat("ipc://@flotilla-shm-bench-", getpid());
};

class QueueEnd final : public End {
 public:
  QueueEnd(bip::message_queue* out, bip::message_queue* in, bool spin)
      : out_(out), in_(in), spin_(spin) {}
  void Send(const char* message) override { out_->send(message, kMessageBytes, 0); }
  void Receive(char* message) override {
    bip::message_queue::size_type bytes = 0;
    unsigned priority = 0;
    if (spin_) {
      while (!in_->try_receive(message, kMessageBytes, bytes, priority)) CpuRelax();
    } else {
      in_->receive(message, kMessageBytes, bytes, priority);
    }
    CHECK(bytes == kMessageBytes);
  }

 private:
  bip::message_queue* out_;
  bip::message_queue* in_;
  bool spin_;
};

class BoostQueues final : public Contender {
 public:
  explicit BoostQueues(bool spin) : spin_(spin), there_(Make("there")), back_(Make("back")) {}
  std::unique_ptr<End> Open(bool first) override {
    return first ? std::make_unique<QueueEnd>(there_.get(), back_.get(), spin_)
                 : std::make_unique<QueueEnd>(back_.get(), there_.get(), spin_);
  }

 private:
  // Children inherit the mapping, so its name can go at once.
  static std::unique_ptr<bip::message_queue> Make(const char* what) {
    const std::string name = StrCat("flotilla-shm-bench-", getpid(), "-", what);
    auto queue =
        std::make_unique<bip::message_queue>(bip::create_only, name.c_str(), 64, kMessageBytes);
    bip::message_queue::remove(name.c_str());
    return queue;
  }
  bool spin_;
  std::unique_ptr<bip::message_queue> there_, back_;
};

constexpr int kLast = -1;  // in place of the message's number: the echo ends

std::vector<int64_t> Measure(Contender* contender, int iterations, const ShmBenchOptions& options) {
  BenchProcess echo(options.Core(1, 2), [&] {
    const auto end = contender->Open(false);
    char message[kMessageBytes];
    for (int number = 0; number != kLast;) {
      end->Receive(message);
      std::memcpy(&number, message, sizeof(number));
      end->Send(message);
    }
  });
  const ScopedPin pin(options.Core(0, 2));
  const auto end = contender->Open(true);
  char message[kMessageBytes] = {}, answer[kMessageBytes];
  std::vector<int64_t> samples;
  samples.reserve(static_cast<size_t>(iterations));
  const int warm_up = iterations / 10;
  const int64_t over_ns = RealClock::Now() + options.round_ns;
  for (int i = 0;; ++i) {
    const int64_t begin_ns = RealClock::Now();
    if (i == warm_up + iterations || begin_ns > over_ns) i = kLast;
    std::memcpy(message, &i, sizeof(i));
    end->Send(message);
    end->Receive(answer);
    const int64_t end_ns = RealClock::Now();
    CHECK(std::memcmp(message, answer, kMessageBytes) == 0);
    if (i >= warm_up || i == kLast) samples.push_back(end_ns - begin_ns);
    if (i == kLast) break;
  }
  echo.Join();
  return samples;
}

}  // namespace

void RunRoundTrips(const ShmBenchOptions& options, Report* report) {
  report->Section("round trip of 256 bytes between two processes");
  const bool spins = options.Fits(2);
  if (!spins) report->Note("one core: nobody spins, and the targets cannot be met");
  Rings spinning({spins ? kSpinNs : 0}), asleep({0});
  Zmq zmq;
  BoostQueues boost(false), boost_spinning(true);
  const int slow = std::max(options.iterations / 10, 100);
  Rounds rings, rings_asleep, zmq_ipc, boost_queue, boost_spin;
  for (int round = 0; round < options.rounds; ++round) {
    rings.Add(Measure(&spinning, options.iterations, options));
    zmq_ipc.Add(Measure(&zmq, slow, options));
    boost_queue.Add(Measure(&boost, slow, options));
    if (spins) boost_spin.Add(Measure(&boost_spinning, options.iterations, options));
    rings_asleep.Add(Measure(&asleep, slow, options));
  }
  report->Add(
      {"step ring + result ring, reader spins: p50", rings.P50Us(), "us", AtMost(2), rings.Note()});
  report->Add({"ZeroMQ PAIR over ipc://: p50", zmq_ipc.P50Us(), "us", {}, zmq_ipc.Note()});
  report->Add({"  rings faster by", zmq_ipc.P50Us() / rings.P50Us(), "x", AtLeast(20), ""});
  report->Add({"boost message_queue: p50", boost_queue.P50Us(), "us", {}, boost_queue.Note()});
  report->Add({"  rings faster by", boost_queue.P50Us() / rings.P50Us(), "x", AtLeast(20), ""});
  if (spins)
    report->Add({"boost message_queue, spinning on try_receive: p50",
                 boost_spin.P50Us(),
                 "us",
                 {},
                 boost_spin.Note()});
  report->Add({"rings, nobody spins: p50", rings_asleep.P50Us(), "us", {}, rings_asleep.Note()});
}

}  // namespace flotilla
