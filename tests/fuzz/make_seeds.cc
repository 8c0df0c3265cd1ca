// Writes the seeds that are no text: fuzz_make_seeds FOLDER makes FOLDER/<target>/made-<name>.
//
// The same bytes each time. tests/fuzz/make_seeds.sh puts those among them that reach something new
// into corpus/.
#include "tests/fuzz/make_seeds.h"

#include <filesystem>
#include <iostream>

#include "tests/fakes/gguf_builder.h"

namespace flotilla::fuzz {
namespace {

std::filesystem::path root;

}  // namespace

void Save(const std::string& target, const std::string& name, const std::string& bytes) {
  const std::filesystem::path folder = root / target;
  std::filesystem::create_directories(folder);
  testing::WriteBytes((folder / ("made-" + name)).string(), bytes);
}

}  // namespace flotilla::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_make_seeds FOLDER\n";
    return 2;
  }
  flotilla::fuzz::root = argv[1];
  flotilla::fuzz::SaveGgufs();
  flotilla::fuzz::SaveSharedMemory();
  flotilla::fuzz::SaveFlights();
  flotilla::fuzz::SaveFrames();
}
