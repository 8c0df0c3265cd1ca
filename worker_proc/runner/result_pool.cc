#include "worker_proc/runner/result_pool.h"

#include <utility>

namespace flotilla {

ResultPool::ResultPool(uint32_t max_rows, uint32_t max_positions)
    : max_rows_(max_rows), max_positions_(max_positions) {
  rows_.reserve(max_rows);
  positions_.reserve(max_positions);
  while (rows_.size() < max_rows) rows_.emplace_back().logprobs.top.reserve(kMaxLogprobs);
}

void ResultPool::Renew(size_t num_rows, StepResult* result) {
  std::vector<RowResult>& rows = result->rows;
  rows.reserve(max_rows_);
  for (RowResult& row : rows) {
    while (!row.prompt_logprobs.empty()) {
      positions_.push_back(std::move(row.prompt_logprobs.back()));
      row.prompt_logprobs.pop_back();
    }
    row.token = -1;
    row.has_logprobs = false;
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
  if (positions_.empty()) positions_.emplace_back().top.reserve(kMaxLogprobs);
  row->prompt_logprobs.push_back(std::move(positions_.back()));
  positions_.pop_back();
  return &row->prompt_logprobs.back();
}

}  // namespace flotilla
