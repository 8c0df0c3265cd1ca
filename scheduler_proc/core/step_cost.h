// What a step costs on the workers, learned from the steps there were: so that a prompt's chunks
// take no more time than the decodes beside them can spare.
//
// seconds = c · x, with x = {1, decoded tokens, prompt tokens, and 2^-10 of the positions that each
// of them read from the KV cache}: reading the weights, the head and the sampler, the matrix
// products, and attention, which costs a chunk less a position than it costs a decode. Recursive
// least squares with a forgetting factor; a coefficient that comes out negative counts as 0. A step
// that took much longer than expected (something else had the core) counts as somewhat longer, or
// else a few of them beside small chunks would make prompts look dear. Nothing is promised before
// kEnough steps.
//
// Units: nanoseconds, tokens. Threads: one. Errors: none. Pure: the same steps give the same costs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flotilla {

// What a step's time depends on. A token at position p reads p + 1 positions of the KV cache.
struct StepWork {
  uint64_t decode_tokens = 0, decode_reads = 0;
  uint64_t chunk_tokens = 0, chunk_reads = 0;

  void AddDecode(uint32_t position) {
    ++decode_tokens;
    decode_reads += position + 1;
  }
  // Of a draft, from position `start` on, behind a token that decodes: one pass reads for all of a
  // row, as for a chunk.
  void AddDraft(uint32_t start, uint32_t num_tokens);
  // `num_tokens` tokens of a prompt from position `start` on.
  void AddChunk(uint32_t start, uint32_t num_tokens);
};

class StepCost {
 public:
  void Observe(const StepWork& work, int64_t ns);
  bool known() const { return num_observed_ >= kEnough; }
  // Never falls as the work grows. 0 before it is known.
  int64_t Predict(const StepWork& work) const;
  // Steps like it were seen lately, so that its cost is no guess.
  bool IsFamiliar(const StepWork& work) const;
  // The most tokens from position `start` on, up to `most`, that add at most `ns` to a step.
  uint32_t TokensWithin(uint32_t start, uint32_t most, int64_t ns) const;
  // What these tokens add to a step.
  int64_t ChunkNs(uint32_t start, uint32_t num_tokens) const;

  // For snapshot.cc: all of it, in both directions.
  template <typename Archive, typename Self>
  static void Fields(Archive& field, Self& self) {
    field(self.coefficients_), field(self.inverse_), field(self.num_observed_);
  }
  bool valid() const;  // no number is infinite or none

 private:
  static constexpr size_t kTerms = 5;
  static constexpr uint32_t kEnough = 8;
  using Vector = std::array<double, kTerms>;

  static Vector Terms(const StepWork& work);
  // How much a step of these terms would teach, and of which coefficients.
  double News(const Vector& x, Vector* gain) const;

  Vector coefficients_ = {};                 // ns a unit
  std::array<Vector, kTerms> inverse_ = {};  // of the weighted products of the terms
  uint32_t num_observed_ = 0;
};
static_assert(sizeof(StepCost) == 248);  // Fields lists all of it

}  // namespace flotilla
