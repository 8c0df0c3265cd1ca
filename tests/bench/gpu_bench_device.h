// A GPU to measure kernels on: memory with random numbers in it, and the time of launches in a
// graph, as steps have them; a row of a table for it.
//
// Units: bytes, microseconds. Threads: one. Ownership: buffers must not outlive it. Errors: CHECK.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker_proc/cuda/device.h"

namespace flotilla::cuda {

class BenchDevice {
 public:
  static constexpr uint32_t kLaunches = 32;  // of a graph

  // filter: what rows must have in their names.
  explicit BenchDevice(std::string_view filter) : filter_(filter) {
    auto device = OpenDevice(0);
    CHECK_OK(device.status());
    device_ = std::move(*device);
  }

  DeviceBuffer Allocate(uint64_t bytes) {
    auto buffer = device_->Allocate(bytes);
    CHECK_OK(buffer.status());
    return std::move(*buffer);
  }
  template <typename T>
  DeviceBuffer Uploaded(const std::vector<T>& values) {
    DeviceBuffer buffer = Allocate(values.size() * sizeof(T));
    device_->UploadAll(values, buffer);
    CHECK_OK(device_->Synchronize());
    return buffer;
  }
  template <typename T, typename Draw>
  void Fill(const DeviceBuffer& buffer, const Draw& draw) {
    std::vector<T> block((4 << 20) + 4096 / sizeof(T));
    for (T& value : block) value = draw();
    uint64_t shift = 0;  // each block begins elsewhere
    for (uint64_t at = 0; at < buffer.bytes();
         at += uint64_t{4} << 20, shift = (shift + 61) % 512) {
      const uint64_t bytes = std::min<uint64_t>(buffer.bytes() - at, 4 << 20);
      device_->Upload(block.data() + shift, bytes, buffer.data() + at);
    }
    CHECK_OK(device_->Synchronize());
  }
  DeviceBuffer Filled(uint64_t bytes, float deviation) {
    DeviceBuffer buffer = Allocate(bytes);
    std::normal_distribution<float> normal(0, deviation);
    Fill<uint16_t>(buffer, [&] {
      const float value = normal(rng_);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      return static_cast<uint16_t>(bits >> 16);
    });
    return buffer;
  }
  void FillFloats(const DeviceBuffer& buffer) {
    std::normal_distribution<float> normal(0, 2);
    Fill<float>(buffer, [&] { return normal(rng_); });
  }

  // Of one of kLaunches launches, launch(0) …, which a graph has behind each other.
  double Microseconds(const std::function<void(uint32_t)>& launch) {
    GraphApi* const api = device_->graphs();
    launch(0);  // what a library loads at its first use
    CHECK_OK(device_->Synchronize());
    CHECK_OK(api->BeginCapture());
    for (uint32_t i = 0; i < kLaunches; ++i) launch(i);
    const auto graph = api->EndCapture();
    CHECK_OK(graph.status());
    double best = 1e30;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      CHECK_OK(api->Launch(*graph));
      CHECK_OK(api->Synchronize(DeviceStream::kCompute));
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      if (round > 0) best = std::min(best, took.count() / kLaunches);
    }
    api->DestroyGraph(*graph);
    return best;
  }

  bool IsWanted(const std::string& what) const { return what.find(filter_) != std::string::npos; }
  // A line of the table: what launch(0) … take, beside what the device could do at most.
  void Row(const std::string& what, double bytes, double flops,
           const std::function<void(uint32_t)>& launch) {
    if (!IsWanted(what)) return;
    const double us = Microseconds(launch);
    const double by_bytes = bytes / bytes_a_us_;
    const double by_flops = flops / flops_a_us_;
    std::printf("| %s | %.1f | %.0f GB/s | %.1f TFLOP/s | %.0f %% of the %s |\n", what.c_str(), us,
                bytes / us * 1e-3, flops / us * 1e-6, 100 * std::max(by_bytes, by_flops) / us,
                by_bytes > by_flops ? "bandwidth" : "arithmetic");
    std::fflush(stdout);
  }
  Device* device() const { return device_.get(); }

 protected:
  std::unique_ptr<Device> device_;
  std::minstd_rand rng_{7};
  // The device's limits, once they are measured.
  double bytes_a_us_ = 1e30;
  double flops_a_us_ = 1e30;

 private:
  const std::string filter_;
};

}  // namespace flotilla::cuda
