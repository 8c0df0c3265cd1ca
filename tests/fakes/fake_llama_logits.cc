// In the place of tests/bench/llama_logits.cc: reads lines of ids, writes a record for each. Logit
// v at position p of token t is (31 t + 7 p + v) % 101 / 10. Arguments as the real one's: MODEL
// DUMP. A MODEL named "fails…" makes it give up after the first line; "short…" leaves a line's end
// out.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

constexpr uint32_t kVocab = 300;

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  const std::string model = argv[1];
  std::FILE* dump = std::fopen(argv[2], "wb");
  if (dump == nullptr) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<uint32_t> ids;
    for (uint32_t id = 0; words >> id;) ids.push_back(id);
    for (uint32_t p = 0; p < ids.size() - (model.starts_with("short") ? 1 : 0); ++p) {
      const uint32_t header[] = {0, p, kVocab, 0};
      std::vector<float> logits(kVocab);
      for (uint32_t v = 0; v < kVocab; ++v) {
        logits[v] = static_cast<float>((31 * ids[p] + 7 * p + v) % 101) / 10;
      }
      std::fwrite(header, sizeof(header), 1, dump);
      std::fwrite(logits.data(), sizeof(float), kVocab, dump);
    }
    if (model.starts_with("fails")) {
      std::cerr << "can't go on\n";
      return 3;
    }
  }
  return std::fclose(dump) == 0 ? 0 : 1;
}
