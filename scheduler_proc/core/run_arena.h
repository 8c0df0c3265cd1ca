// Memory for the radix tree's runs: blocks for a power of two of pages, their hashes, tokens and
// ids, carved from few large slabs and reused by size.
//
// The first slab is for four times the cache's pages, so that hardly ever another is needed; what
// nobody has written is no memory yet. Units: pages of page_size tokens. Threads: one. Ownership:
// the arena owns all blocks. Errors: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "scheduler_proc/core/page_allocator.h"

namespace flotilla {

class RunArena {
 public:
  struct Block {
    uint64_t* hashes = nullptr;
    int32_t* tokens = nullptr;
    PageId* pages = nullptr;
    uint32_t size_class = 0;  // it holds 2^size_class pages
  };

  // Blocks that were handed out stay valid if page_size is as before; else all are gone.
  void Reset(uint32_t num_pages, uint32_t page_size) {
    slab_bytes_ = 4 * size_t{num_pages} * PageBytes(page_size);
    if (page_size == page_size_) return;
    page_size_ = page_size;
    slabs_.clear();
    left_ = 0;
    for (std::vector<Block>& blocks : free_) blocks.clear();
    std::fill(std::begin(num_blocks_), std::end(num_blocks_), 0);
    // For each size that there can be.
    for (size_t i = 0; i <= static_cast<size_t>(std::bit_width(num_pages)); ++i) {
      free_[i].reserve(kReservedBlocks);
    }
  }

  Block Take(size_t num_pages) {
    const auto size_class = static_cast<uint32_t>(std::bit_width(num_pages - 1));
    // Up to four times as much as is needed, rather than more memory.
    for (uint32_t fits = size_class; fits <= size_class + 2; ++fits) {
      if (free_[fits].empty()) continue;
      const Block block = free_[fits].back();
      free_[fits].pop_back();
      return block;
    }
    const size_t capacity = size_t{1} << size_class;
    const size_t bytes = (capacity * PageBytes(page_size_) + 63) / 64 * 64;
    if (bytes > left_) AddSlab(bytes);
    std::byte* memory = next_;
    next_ += bytes;
    left_ -= bytes;
    // Room for its return, so that giving back never allocates.
    if (++num_blocks_[size_class] > free_[size_class].capacity()) {
      free_[size_class].reserve(std::max(kReservedBlocks, 2 * num_blocks_[size_class]));
    }
    auto* hashes = reinterpret_cast<uint64_t*>(memory);
    auto* tokens = reinterpret_cast<int32_t*>(hashes + capacity);
    auto* pages = reinterpret_cast<PageId*>(tokens + capacity * page_size_);
    return {hashes, tokens, pages, size_class};
  }
  void GiveBack(const Block& block) { free_[block.size_class].push_back(block); }

 private:
  static constexpr size_t kReservedBlocks = 4096;
  static constexpr size_t kMinSlabBytes = 64 * 1024;

  static size_t PageBytes(uint32_t page_size) {
    return sizeof(uint64_t) + page_size * sizeof(int32_t) + sizeof(PageId);
  }
  void AddSlab(size_t bytes) {
    const size_t more = slabs_.empty() ? slab_bytes_ : slab_bytes_ / 8;
    left_ = std::max({bytes, more, kMinSlabBytes});
    next_ = slabs_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(left_)).get();
  }

  uint32_t page_size_ = 0;
  size_t slab_bytes_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  static constexpr size_t kNumClasses = 36;
  std::vector<Block> free_[kNumClasses];  // by size class
  size_t num_blocks_[kNumClasses] = {};
};

}  // namespace flotilla
