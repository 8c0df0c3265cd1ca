#include "worker_proc/cpu/thread_pool.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "shm/futex.h"

namespace flotilla::cpu {
namespace {

constexpr int64_t kSpins[] = {0, 50 * kNsPerUs};

TEST(ThreadPoolTest, EveryItemRunsOnceInPiecesOfAtMostTheGrain) {
  for (const int64_t spin_ns : kSpins) {
    for (const uint32_t threads : {1u, 2u, 3u, 5u}) {
      ThreadPool pool({threads, spin_ns});
      ASSERT_EQ(pool.threads(), threads);
      for (const uint32_t count : {0u, 1u, 2u, 7u, 64u, 1000u}) {
        for (const uint32_t grain : {1u, 3u, 64u, 5000u}) {
          std::vector<uint32_t> runs(count, 0);  // plain: an item is one worker's
          pool.ParallelFor(count, grain, [&](uint32_t begin, uint32_t end, uint32_t worker) {
            EXPECT_LT(worker, threads);
            EXPECT_LT(begin, end);
            EXPECT_LE(end - begin, threads == 1 ? count : grain);
            for (uint32_t i = begin; i < end; ++i) ++runs[i];
          });
          EXPECT_EQ(runs, std::vector<uint32_t>(count, 1));
        }
      }
    }
  }
}

// A step's pattern: many short regions, each reading what the one before wrote.
TEST(ThreadPoolTest, RegionsAreOrderedAndSeeEachOthersWrites) {
  for (const int64_t spin_ns : kSpins) {
    ThreadPool pool({4, spin_ns});
    constexpr uint32_t kItems = 32;
    std::vector<uint64_t> even(kItems, 1), odd(kItems, 0);
    for (int region = 0; region < 3000; ++region) {
      const std::vector<uint64_t>& from = region % 2 == 0 ? even : odd;
      std::vector<uint64_t>& to = region % 2 == 0 ? odd : even;
      pool.ParallelFor(kItems, 2, [&](uint32_t begin, uint32_t end, uint32_t) {
        for (uint32_t i = begin; i < end; ++i) to[i] = from[(i + 7) % kItems] + 1;
      });
    }
    EXPECT_EQ(even, std::vector<uint64_t>(kItems, 3001));
  }
}

TEST(ThreadPoolTest, AWorkersScratchIsItsOwn) {
  for (const int64_t spin_ns : kSpins) {
    ThreadPool pool({3, spin_ns});
    struct alignas(64) Scratch {
      uint64_t items = 0;  // plain: TSan would see a second user
    };
    std::vector<Scratch> scratch(pool.threads());
    for (int region = 0; region < 500; ++region) {
      pool.ParallelFor(50, 1, [&](uint32_t begin, uint32_t end, uint32_t worker) {
        scratch[worker].items += end - begin;
      });
    }
    uint64_t items = 0;
    for (const Scratch& s : scratch) items += s.items;
    EXPECT_EQ(items, 500u * 50);
  }
}

// All workers take part: each holds its first item until the others have one too.
TEST(ThreadPoolTest, AllWorkersWorkEvenAfterASleep) {
  for (const int64_t spin_ns : kSpins) {
    ThreadPool pool({3, spin_ns});
    for (int region = 0; region < 20; ++region) {
      std::atomic<uint32_t> inside{0};
      pool.ParallelFor(3, 1, [&](uint32_t, uint32_t, uint32_t) {
        inside.fetch_add(1);
        while (inside.load() < 3) std::this_thread::yield();
      });
      EXPECT_EQ(inside.load(), 3u);
    }
  }
}

// The state letter of every thread of this process but the calling one ("S": asleep).
std::string OtherThreads() {
  std::string states;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.' || entry->d_name == std::to_string(gettid())) continue;
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos) states += line[name_end + 2];
  }
  closedir(tasks);
  return states;
}

TEST(ThreadPoolTest, WhoIsUnpinnedMayRunWhereTheOwnerMightBefore) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  uint32_t first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  std::thread([&] {
    ThreadPoolOptions options;
    options.threads = 1;
    options.cpus = {first};
    ThreadPool pool(options);
    std::thread([&] {
      sched_getaffinity(0, sizeof(after), &after);
      EXPECT_EQ(CPU_COUNT(&after), 1) << "it inherits the owner's";
      pool.Unpin();
      sched_getaffinity(0, sizeof(after), &after);
    }).join();
  }).join();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPoolTest, WithoutWorkTheWorkersSleep) {
  ThreadPool pool({3, 50 * kNsPerUs});
  std::atomic<uint32_t> items{0};
  for (int round = 0; round < 3; ++round) {
    pool.ParallelFor(100, 1,
                     [&](uint32_t begin, uint32_t end, uint32_t) { items.fetch_add(end - begin); });
    const int64_t deadline_ns = RealClock::Now() + 60 * kNsPerSecond;
    // A sanitizer may have a thread of its own, and one that was joined is gone a little later.
    std::string states = OtherThreads();
    while (states.size() < 2 || states != std::string(states.size(), 'S')) {
      ASSERT_LT(RealClock::Now(), deadline_ns) << states;
      states = OtherThreads();
    }
  }
  EXPECT_EQ(items.load(), 300u);
}

TEST(ThreadPoolTest, ABellIsRungOnceBeforeTheNextRegionEnds) {
  for (const int64_t spin_ns : kSpins) {
    for (const uint32_t threads : {1u, 2u, 4u}) {
      std::atomic<uint32_t> bell{0};
      ThreadPool pool({threads, spin_ns});
      for (uint32_t round = 1; round <= 2000; ++round) {
        pool.WakeSoon(&bell);
        if (round % 3 == 0) continue;  // the next call comes before a region does
        pool.ParallelFor(64, 1, [](uint32_t, uint32_t, uint32_t) {});
        // A worker that has just taken it may still be about to ring.
        while (bell.load() < round) std::this_thread::yield();
        ASSERT_EQ(bell.load(), round);
      }
    }
  }
}

TEST(ThreadPoolTest, ABellWakesWhoWaits) {
  std::atomic<uint32_t> bell{0};
  ThreadPool pool({2, 50 * kNsPerUs});
  std::thread waiter([&] {
    for (uint32_t seen = 0; seen < 200; seen = bell.load()) {
      EXPECT_TRUE(FutexWait(&bell, seen, RealClock::Now() + 60 * kNsPerSecond)) << "not woken";
    }
  });
  for (int round = 0; round < 200; ++round) {
    pool.WakeSoon(&bell);
    pool.ParallelFor(64, 1, [](uint32_t, uint32_t, uint32_t) {});
  }
  waiter.join();
}

TEST(ThreadPoolTest, PinnedThreadsStayOnTheirCpu) {
  cpu_set_t before, now;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  uint32_t cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  {
    ThreadPool pool({3, 0, {cpu, cpu, cpu}});
    std::atomic<uint32_t> elsewhere{0};
    pool.ParallelFor(64, 1, [&](uint32_t, uint32_t, uint32_t) {
      cpu_set_t set;
      sched_getaffinity(0, sizeof(set), &set);
      if (CPU_COUNT(&set) != 1 || !CPU_ISSET(cpu, &set)) ++elsewhere;
    });
    EXPECT_EQ(elsewhere, 0u);
    ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1) << "the caller is one of them";
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ThreadPoolTest, GrainGivesEachWorkerSeveralPiecesInWholeUnits) {
  ThreadPool pool({2, 0});
  EXPECT_EQ(pool.Grain(3072 / 16), 24u);
  EXPECT_EQ(pool.Grain(60, 4), 8u);
  EXPECT_EQ(pool.Grain(1), 1u);
  EXPECT_EQ(pool.Grain(3, 4), 4u);
  EXPECT_EQ(pool.Grain(0), 1u);
}

}  // namespace
}  // namespace flotilla::cpu
