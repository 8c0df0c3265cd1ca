// Scheduler::Save and what else tells about the core's state as a whole.
#include "scheduler_proc/core/snapshot.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace flotilla {
namespace {

template <size_t kBytes>
void PackTokens(std::span<const int32_t> tokens, char* out) {
  for (const int32_t token : tokens) {
    for (size_t i = 0; i < kBytes; ++i) out[i] = static_cast<char>(token >> (8 * i));
    out += kBytes;
  }
}

void PutTree(const RadixSnapshot& tree, uint32_t vocab_size, std::string* out) {
  FieldSaver field(out);
  TreeFields(field, tree);
  for (const std::string& salt : tree.salts) field(salt);  // as many as root_born
  PutTokens(tree.tokens, vocab_size, out);
}

}  // namespace

void PutTokens(std::span<const int32_t> tokens, uint32_t vocab_size, std::string* out) {
  const uint32_t bytes = TokenBytes(vocab_size);
  WireWriter(out).Put(static_cast<uint32_t>(tokens.size() * bytes));
  const size_t begin = out->size();
  out->resize(begin + tokens.size() * bytes);
  char* to = out->data() + begin;
  if (bytes == 1) PackTokens<1>(tokens, to);
  if (bytes == 2) PackTokens<2>(tokens, to);
  if (bytes == 3) PackTokens<3>(tokens, to);
  if (bytes == 4) PackTokens<4>(tokens, to);
}

void Scheduler::Impl::Save(std::string* out) const {
  static_assert(sizeof(Impl) == 6208);  // as in snapshot.h
  FieldSaver field(out);
  field(kv.num_pages());
  StateFields(field, *this);
  field(kv.allocator().free_pages());
  RadixSnapshot tree;
  std::vector<uint32_t> numbers;
  kv.cache().Save(&tree, &numbers);
  PutTree(tree, config.vocab_size, out);
  FreeSlots::Fields(field, slots);

  absl::flat_hash_map<const Req*, uint32_t> holders;
  const auto put_req = [&](const Req& req) {
    ReqFields(field, req);
    field(req.spec.grammar != nullptr);
  };
  const auto put_holder = [&](const Req& req) {
    holders.emplace(&req, static_cast<uint32_t>(holders.size()));
    put_req(req);
    HolderFields(field, req);
    field(numbers[req.last_node]);
    const size_t shared_tokens = size_t{req.num_shared} * config.page_size;
    PutTokens(std::span(req.token_ids).subspan(shared_tokens), config.vocab_size, out);
    WireWriter(out).PutSpan(std::span(req.pages).subspan(req.num_shared));
  };
  field(static_cast<uint32_t>(ending.size()));
  for (const Req* req : ending) put_holder(*req);
  field(static_cast<uint32_t>(running_batch.size()));
  for (const Req* req : running_batch) put_holder(*req);
  field(static_cast<uint32_t>(waiting_queue.size()));
  waiting_queue.ForEach([&](const Req& req) {
    put_req(req);
    field(req.retracted);
    PutTokens(req.token_ids, config.vocab_size, out);
  });
  waiting_queue.Save(out);

  field(num_in_flight);
  std::vector<RowSnapshot> rows;
  for (uint32_t i = 0; i < num_in_flight; ++i) {
    rows.clear();
    for (const BatchRow& row : result_queue[i].rows) {
      rows.push_back({holders.at(row.req), row.start, row.num_tokens});
    }
    field(result_queue[i].many_logits), field(rows);
  }
}

void Scheduler::Save(std::string* out) const { impl_->Save(out); }

uint32_t Scheduler::epoch() const { return impl_->epoch; }

std::vector<Scheduler::Progress> Scheduler::LiveRequests() const {
  std::vector<const Req*> reqs(impl_->running_batch.begin(), impl_->running_batch.end());
  impl_->waiting_queue.ForEach([&](const Req& req) { reqs.push_back(&req); });
  std::sort(reqs.begin(), reqs.end(), [](const Req* a, const Req* b) { return a->seq < b->seq; });
  std::vector<Progress> live;
  for (const Req* req : reqs) {
    Progress& progress = live.emplace_back(Progress{req->spec, req->num_output(), req->queued_ns,
                                                    req->first_scheduled_ns, req->first_token_ns});
    progress.spec.prompt_ids.assign(req->token_ids.begin(),
                                    req->token_ids.begin() + req->prompt_len);
  }
  return live;
}

}  // namespace flotilla
