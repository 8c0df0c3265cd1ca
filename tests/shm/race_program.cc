// Exchanges data through a ring and through a collective, threads on one mapping, polling only.
// Built twice for ThreadSanitizer: as it is, and with the publishing stores weakened to relaxed.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/collective.h"
#include "shm/ring.h"

namespace {

using namespace flotilla;

void RunRing() {
  auto segment = Segment::Create("race", RingSegmentBytes(65536));
  CHECK_OK(segment.status());
  CHECK_OK(InitRing(*segment, 1));
  auto writer = RingWriter::Attach(&*segment);
  auto reader = RingReader::Attach(&*segment, 0, {});
  CHECK(writer.ok() && reader.ok());
  std::thread other([&] {
    for (int taken = 0; taken < 200;) {
      auto frame = reader->TryRead();
      CHECK_OK(frame.status());
      if (frame->empty()) {
        std::this_thread::yield();
        continue;
      }
      CHECK(frame->size() == 64 && frame->front() == static_cast<char>(taken));
      reader->Release();
      ++taken;
    }
  });
  for (int i = 0; i < 200; ++i)
    CHECK_OK(writer->Write(std::string(64, static_cast<char>(i)), INT64_MAX));
  other.join();
}

void RunCollective() {
  auto segment = Segment::Create("race", CollectiveSegmentBytes(2, 4096));
  CHECK_OK(segment.status());
  CHECK_OK(InitCollective(*segment, 2, 4096));
  const auto rank = [&](uint32_t r) {
    ShmCollectiveOptions options;
    options.rank = r;
    options.wait.spin_ns = kNsPerSecond;
    auto collective = AttachShmCollective(&*segment, options);
    CHECK_OK(collective.status());
    CHECK_OK((*collective)->Reset(1));
    std::vector<float> data(16);
    for (int i = 0; i < 100; ++i) {
      data.assign(16, static_cast<float>(r + 1));
      CHECK_OK((*collective)->AllReduceSum(data));
      CHECK(data[15] == 3.0f);
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  if (std::strcmp(argv[1], "ring") == 0) RunRing();
  if (std::strcmp(argv[1], "collective") == 0) RunCollective();
  std::puts("done");
}
