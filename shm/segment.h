// A sealed memfd mapped with Boost.Interprocess.
//
// Sized once, then sealed (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), so that no process can make
// another fault by truncating it. It has no name: it is passed by inheritance or SCM_RIGHTS and
// vanishes with its last holder. Segments hold offsets only, never pointers. Threads: const after
// construction. Ownership: Segment owns its mapping and descriptor.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

class Segment {
 public:
  // A new zeroed segment of `bytes` (rounded up to pages). `name` is for /proc only.
  // The descriptor is close-on-exec; the launcher clears that for the child it is meant for.
  static StatusOr<Segment> Create(const std::string& name, size_t bytes);
  // Maps an inherited or received descriptor. Refuses one that is not a sealed memfd or is smaller
  // than min_bytes.
  static StatusOr<Segment> Map(UniqueFd fd, size_t min_bytes);

  void* data() const { return region_.get_address(); }
  size_t size() const { return region_.get_size(); }
  int fd() const { return fd_.get(); }

 private:
  Segment(UniqueFd fd, boost::interprocess::mapped_region region)
      : fd_(std::move(fd)), region_(std::move(region)) {}
  UniqueFd fd_;
  boost::interprocess::mapped_region region_;
};

}  // namespace flotilla
