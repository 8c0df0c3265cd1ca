#include "scheduler_proc/core/step_cost.h"

#include <algorithm>
#include <cmath>

namespace flotilla {
namespace {

constexpr double kForgetting = 0.995;  // weight of a step against the next: the last 200 count
constexpr double kPrior = 1e4;         // how little the first guess of 0 is trusted
constexpr double kMaxSurprise = 0.5;   // of what was expected: what a slow step counts as at most
constexpr double kFamiliar = 0.2;      // how much one step may still teach, to be no news
constexpr double kMaxNs = 1e15;        // no step takes eleven days
constexpr double kMaxVariance = 1e6;   // else a term that never varies grows without bound

// Of tokens one after the other.
uint64_t ReadsOf(uint32_t start, uint32_t num_tokens) {
  return uint64_t{num_tokens} * start + uint64_t{num_tokens} * (num_tokens + 1) / 2;
}

}  // namespace

void StepWork::AddDraft(uint32_t start, uint32_t num_tokens) {
  decode_tokens += num_tokens;
  chunk_reads += ReadsOf(start, num_tokens);
}

void StepWork::AddChunk(uint32_t start, uint32_t num_tokens) {
  chunk_tokens += num_tokens;
  chunk_reads += ReadsOf(start, num_tokens);
}

StepCost::Vector StepCost::Terms(const StepWork& work) {
  return {1, static_cast<double>(work.decode_tokens), static_cast<double>(work.chunk_tokens),
          static_cast<double>(work.decode_reads) / 1024,
          static_cast<double>(work.chunk_reads) / 1024};
}

double StepCost::News(const Vector& x, Vector* gain) const {
  double news = 0;
  *gain = {};
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) (*gain)[i] += inverse_[i][j] * x[j];
    news += x[i] * (*gain)[i];
  }
  return news;
}

bool StepCost::IsFamiliar(const StepWork& work) const {
  Vector gain;
  return known() && News(Terms(work), &gain) < kFamiliar;
}

void StepCost::Observe(const StepWork& work, int64_t ns) {
  if (num_observed_ == 0) {
    for (size_t i = 0; i < kTerms; ++i) inverse_[i][i] = kPrior;
  }
  num_observed_ += num_observed_ < kEnough;
  const Vector x = Terms(work);
  Vector gain;
  const double news = News(x, &gain), scale = kForgetting + news;
  double error = static_cast<double>(ns);
  for (size_t i = 0; i < kTerms; ++i) error -= x[i] * coefficients_[i];
  if (news < kFamiliar) error = std::min(error, kMaxSurprise * static_cast<double>(Predict(work)));
  for (size_t i = 0; i < kTerms; ++i) coefficients_[i] += gain[i] / scale * error;
  double largest = 0;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) inverse_[i][j] -= gain[i] * gain[j] / scale;
    largest = std::max(largest, inverse_[i][i]);
  }
  if (largest > kMaxVariance) return;  // no forgetting while nothing new is seen
  for (Vector& row : inverse_) {
    for (double& value : row) value /= kForgetting;
  }
}

int64_t StepCost::Predict(const StepWork& work) const {
  if (!known()) return 0;
  const Vector x = Terms(work);
  double ns = 0;
  for (size_t i = 0; i < kTerms; ++i) ns += std::max(coefficients_[i], 0.0) * x[i];
  return static_cast<int64_t>(ns < kMaxNs ? ns : kMaxNs);
}

bool StepCost::valid() const {
  const auto finite = [](const Vector& v) {
    return std::all_of(v.begin(), v.end(), [](double value) { return std::isfinite(value); });
  };
  return num_observed_ <= kEnough && finite(coefficients_) &&
         std::all_of(inverse_.begin(), inverse_.end(), finite);
}

int64_t StepCost::ChunkNs(uint32_t start, uint32_t num_tokens) const {
  StepWork work;
  work.AddChunk(start, num_tokens);
  return Predict(work) - Predict({});
}

uint32_t StepCost::TokensWithin(uint32_t start, uint32_t most, int64_t ns) const {
  uint32_t fits = 0, past = most + 1;  // cost grows with the tokens
  while (past - fits > 1) {
    const uint32_t middle = fits + (past - fits) / 2;
    (ChunkNs(start, middle) <= ns ? fits : past) = middle;
  }
  return fits;
}

}  // namespace flotilla
