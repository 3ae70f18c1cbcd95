// Runs a fuzz target without libFuzzer: every seed file, then mutations of each that are the same
// in every run. Usage: replay_<target> SEED_FOLDER [--mutations N]. An input that kills the process
// is left in the working folder as crash-input, with its origin on stderr.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// There under the sanitizers only.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

constexpr size_t kMaxInputBytes = size_t{1} << 16;  // longer seeds are cut for mutation

/// What is being run, for the report of a crash.
struct Current {
  std::string input;
  std::string origin;
};
Current& Running() {
  static Current current;
  return current;
}

void ReportCrash() {
  std::fprintf(stderr, "replay: died on %s; the input is in ./crash-input\n",
               Running().origin.c_str());
  if (std::FILE* file = std::fopen("crash-input", "wb")) {
    std::fwrite(Running().input.data(), 1, Running().input.size(), file);
    std::fclose(file);
  }
}

void OnSignal(int signal) {
  ReportCrash();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound); 0 for bound 0.
  size_t Below(size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(Next() % bound); }

 private:
  uint64_t state_;
};

/// Pieces that readers of numbers, tables, JSON and YAML tend to trip over.
constexpr const char* kTokens[] = {"0",
                                   "-1",
                                   "2147483648",
                                   "9223372036854775807",
                                   "18446744073709551616",
                                   "1e308",
                                   "1e999",
                                   "NaN",
                                   "0x7f",
                                   "1.5",
                                   "null",
                                   "true",
                                   "\"\"",
                                   "[]",
                                   "{}",
                                   "[[[[[[[[",
                                   "{\"a\":",
                                   "&a [*a]",
                                   "<<: *a",
                                   "- ",
                                   ": ",
                                   "\t",
                                   "\r\n",
                                   "\n",
                                   "\x1b[1m",
                                   "\xff\xfe",
                                   "\xed\xa0\x80",
                                   "!!binary",
                                   "GPU0",
                                   "NIC0",
                                   "NV18",
                                   "SYS",
                                   "X"};

/// One random change of `input`; `other` is spliced in now and then.
void MutateOnce(Random& random, const std::string& other, std::string& input) {
  const size_t at = random.Below(input.size() + 1);
  const size_t length = random.Below(std::min<size_t>(input.size() - at, 64) + 1);
  switch (random.Below(7)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random.Below(8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random.Below(256));
      break;
    case 2:
      input.erase(at, length);
      break;
    case 3:
      input.insert(at, input.substr(at, length));
      break;
    case 4:
      input.insert(at, kTokens[random.Below(std::size(kTokens))]);
      break;
    case 5:
      input.resize(at);
      break;
    default:
      input = input.substr(0, at) + other.substr(random.Below(other.size() + 1));
      break;
  }
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
}

void Run(std::string input, std::string origin) {
  Running() = {std::move(input), std::move(origin)};
  const std::string& bytes = Running().input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

struct Seed {
  std::string name;
  std::string bytes;
};

/// Regular files of a folder, by name.
std::vector<Seed> ReadSeeds(const std::filesystem::path& folder) {
  std::vector<Seed> seeds;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back(
        {entry.path().filename().string(), std::string(std::istreambuf_iterator(file), {})});
  }
  std::sort(seeds.begin(), seeds.end(),
            [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  long mutations = 100;
  if (argc == 4 && std::strcmp(argv[2], "--mutations") == 0) {
    mutations = std::strtol(argv[3], nullptr, 10);
  } else if (argc != 2) {
    std::fprintf(stderr, "usage: %s SEED_FOLDER [--mutations N]\n", argv[0]);
    return 2;
  }
  const std::vector<Seed> seeds = ReadSeeds(argv[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "replay: no seed files in %s\n", argv[1]);
    return 2;
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(ReportCrash);
  } else {
    std::signal(SIGSEGV, OnSignal);
  }
  std::signal(SIGABRT, OnSignal);

  Run("", "the empty input");
  long inputs = 1;
  for (size_t i = 0; i < seeds.size(); ++i) {
    Run(seeds[i].bytes, "seed " + seeds[i].name);
    Random random(i);
    for (long m = 0; m < mutations; ++m) {
      std::string input = seeds[i].bytes.substr(0, kMaxInputBytes);
      const size_t changes = 1 + random.Below(6);
      for (size_t c = 0; c < changes; ++c) {
        MutateOnce(random, seeds[random.Below(seeds.size())].bytes, input);
      }
      Run(std::move(input), "mutation " + std::to_string(m) + " of seed " + seeds[i].name);
    }
    inputs += 1 + mutations;
  }
  std::printf("%ld inputs from %zu seeds: no crash\n", inputs, seeds.size());
  return 0;
}
