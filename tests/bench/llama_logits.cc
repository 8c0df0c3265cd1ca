// llama.cpp's logits at every position of some prompts, in the format of `--logits-dump`
// (tests/oracle/logits_dump.py), so that both engines are scored by the same script.
//
//   llama_logits MODEL.gguf DUMP < PROMPTS      a line of token ids for each prompt
//
// Built by build_llama.sh against the peer's own header and libraries, never with Flotilla.
// llama.cpp's defaults are kept (f16 KV cache, chunks of 512): they are what its users get.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "llama_logits: " << what << "\n";
  std::exit(1);
}

constexpr int32_t kChunk = 512;

void RunPrompt(llama_context* context, const std::vector<llama_token>& ids, int32_t vocab,
               std::FILE* dump) {
  llama_memory_clear(llama_get_memory(context), true);
  llama_batch batch = llama_batch_init(kChunk, 0, 1);
  const auto total = static_cast<int32_t>(ids.size());
  for (int32_t begin = 0; begin < total; begin += kChunk) {
    batch.n_tokens = std::min(kChunk, total - begin);
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = ids[static_cast<size_t>(begin + i)];
      batch.pos[i] = begin + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) Fail("llama_decode failed");
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
      const uint32_t header[] = {0, static_cast<uint32_t>(begin + i), static_cast<uint32_t>(vocab),
                                 0};
      const float* logits = llama_get_logits_ith(context, i);
      if (std::fwrite(header, sizeof(header), 1, dump) != 1 ||
          std::fwrite(logits, sizeof(float), static_cast<size_t>(vocab), dump) !=
              static_cast<size_t>(vocab)) {
        Fail("can't write the dump");
      }
    }
  }
  llama_batch_free(batch);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("usage: llama_logits MODEL.gguf DUMP < PROMPTS");
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) Fail(std::string("can't load ") + argv[1]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_batch = kChunk;
  params.n_threads = params.n_threads_batch = 2;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) Fail("can't create a context");
  std::FILE* dump = std::fopen(argv[2], "wb");
  if (dump == nullptr) Fail(std::string("can't write ") + argv[2]);
  const int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<llama_token> ids;
    for (llama_token id = 0; words >> id;) ids.push_back(id);
    if (!ids.empty()) RunPrompt(context, ids, vocab, dump);
  }
  if (std::fclose(dump) != 0) Fail("can't write the dump");
  llama_free(context);
  llama_model_free(model);
  return 0;
}
