// A choice's deltas, told apart (answer_parser.h): its calls get ids, and an output that ends by
// itself after calls is finished by them. Whatever the API, over HTTP and gRPC.
//
// Threads: one at a time. Errors: none, any text is an answer.
#pragma once

#include "flotilla/v1/inference.pb.h"
#include "router/answer/answer_parser.h"

namespace flotilla {

class ChoiceReader {
 public:
  // `syntax` must outlive the reader.
  explicit ChoiceReader(const AnswerSyntax& syntax)
      : parser_(syntax), short_ids_(syntax.tools.short_ids) {}

  // What can be told with this delta: some of it may have to wait for the next one, but for the
  // one that has a finish_reason.
  AnswerText Read(const v1::ChoiceDelta& delta);
  // Of a delta that was read.
  v1::FinishReason FinishReasonOf(const v1::ChoiceDelta& delta) const;

 private:
  AnswerParser parser_;
  const bool short_ids_;
};

// In place of the text that was read.
void SetAnswer(AnswerText answer, v1::ChoiceDelta* choice);

}  // namespace flotilla
