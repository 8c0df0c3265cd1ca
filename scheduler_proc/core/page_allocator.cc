#include "scheduler_proc/core/page_allocator.h"

#include "common/base/check.h"

namespace flotilla {

void PageAllocator::Reset(uint32_t num_pages) {
  is_free_.assign(num_pages, 1);
  free_.resize(num_pages);
  for (uint32_t i = 0; i < num_pages; ++i) free_[i] = num_pages - 1 - i;  // page 0 goes first
}

bool PageAllocator::Alloc(uint32_t count, std::vector<PageId>* pages) {
  if (count > free_.size()) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const PageId page = free_.back();
    free_.pop_back();
    is_free_[page] = 0;
    pages->push_back(page);
  }
  return true;
}

void PageAllocator::Free(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    CHECK(page < is_free_.size() && !is_free_[page]);
    is_free_[page] = 1;
    free_.push_back(page);
  }
}

bool PageAllocator::Restore(std::span<const PageId> free_pages) {
  is_free_.assign(is_free_.size(), 0);
  free_.clear();
  for (const PageId page : free_pages) {
    if (page >= is_free_.size() || is_free_[page]) return false;
    is_free_[page] = 1;
    free_.push_back(page);
  }
  return true;
}

}  // namespace flotilla
