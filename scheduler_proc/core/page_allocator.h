// Which KV pages are free. A stack: the page freed last is handed out first, so a small working
// set stays warm and the same calls give the same pages.
//
// Units: pages. Threads: one. Errors: Alloc takes all or nothing; freeing a page twice ends the
// process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flotilla {

using PageId = uint32_t;

class PageAllocator {
 public:
  // All pages free. Forgets what was handed out.
  void Reset(uint32_t num_pages);

  // Appends `count` pages to *pages. False, and nothing taken, if fewer are free.
  bool Alloc(uint32_t count, std::vector<PageId>* pages);
  void Free(std::span<const PageId> pages);

  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_pages() const { return static_cast<uint32_t>(is_free_.size()); }
  bool is_free(PageId page) const { return is_free_[page] != 0; }

  // The free pages, the next to be handed out last; and these back. False: pages that are not
  // there, or one twice.
  const std::vector<PageId>& free_pages() const { return free_; }
  bool Restore(std::span<const PageId> free_pages);

 private:
  std::vector<PageId> free_;
  std::vector<uint8_t> is_free_;  // by page
};

}  // namespace flotilla
