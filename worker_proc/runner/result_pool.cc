#include "worker_proc/runner/result_pool.h"

#include <utility>

namespace flotilla {

ResultPool::ResultPool(uint32_t max_rows, uint32_t max_positions)
    : max_rows_(max_rows), max_positions_(max_positions) {
  rows_.reserve(max_rows);
  positions_.reserve(max_positions);
  while (rows_.size() < max_rows) {
    RowResult& row = rows_.emplace_back();
    row.logprobs.top.reserve(kMaxLogprobs);
    row.accepted.reserve(kMaxDraftTokens);
    row.accepted_logprobs.reserve(kMaxDraftTokens);
  }
}

void ResultPool::GiveBack(std::vector<PositionLogprobs>* positions) {
  for (; !positions->empty(); positions->pop_back()) {
    positions_.push_back(std::move(positions->back()));
  }
}

PositionLogprobs ResultPool::TakePosition() {
  if (positions_.empty()) positions_.emplace_back().top.reserve(kMaxLogprobs);
  PositionLogprobs position = std::move(positions_.back());
  positions_.pop_back();
  return position;
}

void ResultPool::Renew(size_t num_rows, StepResult* result) {
  std::vector<RowResult>& rows = result->rows;
  rows.reserve(max_rows_);
  for (RowResult& row : rows) {
    GiveBack(&row.prompt_logprobs);
    GiveBack(&row.accepted_logprobs);
    row.token = -1;
    row.has_logprobs = false;
    row.accepted.clear();
    row.prompt_start = 0;
    row.embedding.clear();
  }
  for (; rows.size() > num_rows; rows.pop_back()) rows_.push_back(std::move(rows.back()));
  while (rows.size() < num_rows) {
    if (rows_.empty()) rows_.emplace_back();
    rows.push_back(std::move(rows_.back()));
    rows_.pop_back();
  }
}

PositionLogprobs* ResultPool::AddPromptPosition(RowResult* row) {
  row->prompt_logprobs.reserve(max_positions_);
  return &row->prompt_logprobs.emplace_back(TakePosition());
}

void ResultPool::Accept(RowResult* row) {
  row->accepted.push_back(row->token);
  if (!row->has_logprobs) return;
  std::swap(row->accepted_logprobs.emplace_back(TakePosition()), row->logprobs);
}

}  // namespace flotilla
