// Radix tree over the tokens whose KV is in the cache: which pages hold a given prefix.
//
// A node is a run of whole pages; edges are compared token by token, and what matches is rounded
// down to whole pages. Each tenant salt has a root of its own, so tenants never share. A node that
// a running request reads is locked, and so are all nodes above it; the others are evictable, from
// the end of a path towards the root: under lru the least recently used first; under lfu those that
// the fewest requests had used when they ended or were retracted, and of these the least recently
// used.
//
// How it stays fast: a node views a reference-counted run of tokens and pages, so that splitting
// copies nothing; children are found in one flat hash table keyed by (parent, first page); all
// unlocked nodes are in one intrusive list (lru) or binary heap (lfu) in which a parent always
// comes after its children, so the page to evict is at the end of the first. Nodes, runs and table
// are reused, not freed.
//
// Units: pages of page_size tokens; token spans are whole pages unless said otherwise.
// Threads: one. Ownership: the tree owns the pages of its nodes; Evict and Insert hand pages back.
// Errors: none; a broken invariant ends the process.
// Source: SGLang's RadixAttention (requirement 001), own layout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "scheduler_proc/core/page_allocator.h"
#include "scheduler_proc/core/page_event.h"
#include "scheduler_proc/core/run_arena.h"

namespace flotilla {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

enum class EvictionPolicy : uint32_t { kLru, kLfu };

// Told of each change of the tree that may change where a match ends, when it is done (OnErase:
// before). Must not call the cache's changing functions.
class RadixObserver {
 public:
  virtual ~RadixObserver() = default;
  virtual void OnAddLeaf(NodeId leaf) = 0;
  virtual void OnSplit(NodeId upper, NodeId lower) = 0;  // upper is new: the first pages
  virtual void OnShorten(NodeId node) = 0;               // it lost pages at its end
  virtual void OnErase(NodeId node) = 0;                 // a leaf
  virtual void OnReset() = 0;                            // roots are left
};

// What a tree holds. Memory, locks, counts and order can be derived of it and of who uses it. A
// node is named by its number: roots first, then the others.
struct RadixSnapshot {
  uint64_t clock = 0, num_born = 0;
  // Of the roots, by age.
  std::vector<std::string> salts;
  std::vector<uint64_t> root_born;
  // Of the others, by age, parts of one from its beginning on: a parent comes before its children.
  std::vector<uint64_t> born, stamp;
  std::vector<uint32_t> parent, hits, num_pages;
  std::vector<PageId> pages;    // of all nodes
  std::vector<int32_t> tokens;  // of all pages

  size_t num_nodes() const { return salts.size() + parent.size(); }
};

class RadixCache {
 public:
  explicit RadixCache(EvictionPolicy policy = EvictionPolicy::kLru) : policy_(policy) {}

  // Empties the tree. Roots that are acquired stay valid.
  void Reset(uint32_t num_pages, uint32_t page_size);

  // The tenant's root, kept until it is released as often as it was acquired.
  NodeId AcquireRoot(const std::string& salt);
  void ReleaseRoot(NodeId root);

  // Pages of the longest cached prefix of `tokens` (any length; whole pages are compared).
  uint32_t PeekPrefix(NodeId root, std::span<const int32_t> tokens) const;
  // The same, and the node that holds the last of them (the root if nothing matches).
  struct Match {
    NodeId node;
    uint32_t num_pages;
  };
  Match FindPrefix(NodeId root, std::span<const int32_t> tokens) const;
  // Matches, appends the pages, makes the path the most recent, and returns the node that ends
  // exactly there (the root if nothing matches).
  NodeId MatchPrefix(NodeId root, std::span<const int32_t> tokens, std::vector<PageId>* pages);

  // Locks / unlocks the path from `node` to its root.
  void Lock(NodeId node);
  void Unlock(NodeId node);
  // Pages that would become evictable if each of `nodes` were unlocked once. Changes nothing.
  uint32_t EvictableIfUnlocked(std::span<const NodeId> nodes);

  // Gives `pages` to the tree as a new child of `node`, which the caller has locked. The child is
  // locked once (its path already is) and returned. kNoNode, and nothing taken, if the tree already
  // has a child that begins with the same page.
  NodeId ExtendLocked(NodeId node, std::span<const int32_t> tokens, std::span<const PageId> pages);
  // Gives the pages of a whole sequence to the tree. Where the tree already has other pages for the
  // same tokens, the given ones are appended to *duplicates instead.
  void Insert(NodeId root, std::span<const int32_t> tokens, std::span<const PageId> pages,
              std::vector<PageId>* duplicates);

  // Takes up to `count` unlocked pages out, as the eviction policy says; appends them to *pages.
  void Evict(uint32_t count, std::vector<PageId>* pages);

  uint32_t evictable_pages() const { return evictable_pages_; }
  uint32_t total_pages() const { return total_pages_; }
  // One, or nullptr.
  void set_observer(RadixObserver* observer) { observer_ = observer; }
  // Appends to it each page that the tree gains or loses from now on, while it is empty. nullptr:
  // to nothing.
  void set_page_log(PageLog* log);
  // For observers. kNoNode: of a root.
  NodeId parent(NodeId node) const { return nodes_[node].parent; }
  uint32_t end_pages(NodeId node) const { return nodes_[node].end_pages; }
  // Number of the node's first page in the order of insertion: of a split node, both parts'.
  uint64_t born(NodeId node) const { return nodes_[node].born; }
  // Hash of a child of `parent` that begins with this page.
  uint64_t Key(NodeId parent, const int32_t* page) const;
  uint64_t key(NodeId node) const { return nodes_[node].key; }
  // Pages at the beginning of `tokens` that the node begins with too.
  uint32_t CommonPages(NodeId node, std::span<const int32_t> tokens) const {
    return CommonPages(nodes_[node], tokens);
  }

  // Appends the pages from the root to the end of `node`.
  void AppendPath(NodeId node, std::vector<PageId>* pages) const;
  // For tests and the ledger: every page of the tree, and whether it is locked.
  struct PageState {
    PageId page;
    bool locked;
  };
  void AppendAllPages(std::vector<PageState>* pages) const;
  // Counters, links, table and order of the list agree with the nodes.
  Status CheckInvariants() const;

  // radix_cache_snapshot.cc. *numbers: by NodeId, the node's number in the snapshot.
  void Save(RadixSnapshot* snapshot, std::vector<uint32_t>* numbers) const;
  // Of a tree that never held anything but was Reset: then it has these nodes, whose ids are their
  // numbers, all unlocked, and the roots have no users yet. DataLoss: a snapshot that no tree is
  // saved as; the tree is of no use then.
  Status Restore(const RadixSnapshot& snapshot);
  // kNoNode: the tenant has no root.
  NodeId FindRoot(const std::string& salt) const;
  NodeId RootOf(NodeId node) const;
  // Appends the tokens from the root to the end of `node`.
  void AppendPathTokens(NodeId node, std::vector<int32_t>* tokens) const;

 private:
  // Tokens and pages shared by the nodes that were split from one insertion.
  struct Run {
    RunArena::Block block;
    uint32_t refs = 0;
  };
  struct Node {
    NodeId parent = kNoNode;  // kNoNode: a root (or unused)
    uint32_t run = 0;
    uint32_t offset = 0;  // pages into the run
    uint32_t num_pages = 0;
    uint32_t lock_ref = 0;
    uint32_t num_children = 0;
    uint32_t root_users = 0;  // roots only
    bool in_use = false;
    bool is_root = false;
    uint64_t key = 0;  // hash of parent and first page
    uint64_t born = 0;
    NodeId newer = kNoNode, older = kNoNode;  // lru
    uint32_t heap_position = 0;               // lfu
    uint32_t hits = 0;                        // requests that used it and gave it back
    uint32_t end_pages = 0;                   // pages from the root to its end
    uint64_t stamp = 0;                       // time of last use, as a count of uses
  };

  // radix_cache_snapshot.cc: a field that is added must be saved, or be derivable.
  static_assert(sizeof(Node) == 80);

  const int32_t* Tokens(const Node& node) const {
    return runs_[node.run].block.tokens + size_t{node.offset} * page_size_;
  }
  const PageId* Pages(const Node& node) const { return runs_[node.run].block.pages + node.offset; }
  const uint64_t* Hashes(const Node& node) const {
    return runs_[node.run].block.hashes + node.offset;
  }
  // With a page log.
  uint64_t EndHash(NodeId node) const;
  void LogStored(const Node& node);
  void LogRemoved(const Node& node, uint32_t num_pages);
  size_t FindBucket(NodeId parent, uint64_t key, const int32_t* first_page) const;
  NodeId FindChild(NodeId parent, const int32_t* first_page) const;
  void TableInsert(NodeId node);
  void TableErase(NodeId node);

  uint32_t CommonPages(const Node& node, std::span<const int32_t> tokens) const;
  NodeId NewNode();
  void FreeNode(NodeId node);
  uint32_t NewRun(std::span<const int32_t> tokens, std::span<const PageId> pages);
  void UnrefRun(uint32_t run);
  NodeId NewRoot(const std::string& salt);
  void DropRootIfUnused(NodeId root);
  NodeId AddLeaf(NodeId parent, std::span<const int32_t> tokens, std::span<const PageId> pages);
  NodeId SplitAt(NodeId node, uint32_t num_pages);
  // Walks down as far as `tokens` match; the node that ends there, splitting the last one.
  NodeId WalkAndSplit(NodeId root, std::span<const int32_t> tokens, uint32_t* num_pages);
  // Makes the path the most recent and counts `hits` uses of it.
  void TouchPath(NodeId node, uint32_t hits);

  // radix_cache_order.cc: the unlocked nodes, roots excluded, in the order of their eviction.
  bool OrderEmpty() const { return lru() ? oldest_ == kNoNode : heap_.empty(); }
  NodeId OrderFirst() const { return lru() ? oldest_ : heap_[0]; }
  void OrderAdd(NodeId node);     // as the most recently used
  void OrderInsert(NodeId node);  // lru: behind all others; lfu: by its hits and stamp
  void OrderAddParent(NodeId node, NodeId child);
  void OrderRemove(NodeId node);
  bool lru() const { return policy_ == EvictionPolicy::kLru; }
  bool EvictedBefore(NodeId a, NodeId b) const;
  void HeapPlace(NodeId node, uint32_t position);
  void HeapUp(uint32_t position);
  void HeapDown(uint32_t position);
  Status CheckOrder(uint64_t num_unlocked) const;

  const EvictionPolicy policy_;

  uint32_t page_size_ = 1;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  RunArena arena_;
  std::vector<Run> runs_;
  std::vector<uint32_t> free_runs_;
  std::vector<NodeId> table_;                   // open addressing, linear probing
  NodeId newest_ = kNoNode, oldest_ = kNoNode;  // lru
  std::vector<NodeId> heap_;                    // lfu: the next to evict is at 0
  uint64_t clock_ = 0;
  uint32_t evictable_pages_ = 0, total_pages_ = 0;
  uint64_t num_born_ = 0;
  RadixObserver* observer_ = nullptr;
  PageLog* page_log_ = nullptr;
  absl::flat_hash_map<std::string, NodeId> roots_;
  absl::flat_hash_map<NodeId, std::string> salts_;
};

}  // namespace flotilla
