// What a request gets of its model's defaults of sampling.
#include <gtest/gtest.h>

#include "router/api/generate_check.h"

namespace flotilla {
namespace {

TEST(ModelSamplingTest, FillsWhatARequestDoesNotSay) {
  ModelHandle model;
  model.vocab_size = 1000;
  v1::SamplingParams none;
  SetModelSampling(model, &none);
  EXPECT_EQ(none.ByteSizeLong(), 0u) << "the model has none";

  model.sampling.temperature = 0.6f;
  model.sampling.top_p = 0.95f;
  model.sampling.top_k = 20;
  model.sampling.min_p = 0.05f;
  model.sampling.repetition_penalty = 1.05f;
  v1::SamplingParams all = none, some;
  SetModelSampling(model, &all);
  EXPECT_EQ(all.temperature(), 0.6f);
  EXPECT_EQ(all.top_p(), 0.95f);
  EXPECT_EQ(all.top_k(), 20);
  EXPECT_EQ(all.min_p(), 0.05f);
  EXPECT_EQ(all.repetition_penalty(), 1.05f);
  some.set_temperature(0);
  some.set_top_k(0);
  some.set_repetition_penalty(1);
  SetModelSampling(model, &some);
  EXPECT_EQ(some.temperature(), 0) << "greedy stays greedy";
  EXPECT_EQ(some.top_k(), 0);
  EXPECT_EQ(some.repetition_penalty(), 1);
  EXPECT_EQ(some.top_p(), 0.95f);

  model.sampling.top_k = 5000;
  SetModelSampling(model, &none);
  EXPECT_EQ(none.top_k(), 1000) << "no more than there are";
  v1::GenerateRequest request;
  *request.mutable_sampling() = none;
  request.mutable_stopping()->set_max_tokens(1);
  EXPECT_FALSE(CheckParams(request, model).has_value()) << "it is what a client might have said";
}

}  // namespace
}  // namespace flotilla
