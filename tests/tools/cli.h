// Runs the built binary as a user does, and looks at exit code, standard output and standard error.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace meshwright::tools {

inline const std::string kSource = MESHWRIGHT_SOURCE_DIR;
inline const std::string kTopos = kSource + "/tests/data/topo/";
inline const std::string kCorpus = kSource + "/tests/data/text/corpus.txt";
/// 8 GPUs on NVSwitch with 12 NICs.
inline const std::string kH100Capture = kTopos + "041-h100-8gpu-12nic-fused-PIXNODE.txt";

struct CliResult {
  int exit = -1;
  std::string out, err;

  /// Standard output as one JSON document; a test failure when it is anything else.
  nlohmann::json Json() const;
  std::vector<std::string> OutLines() const {
    std::vector<std::string> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A folder of its own for each test, removed at the end.
class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("MESHWRIGHT_CACHE_DIR", MESHWRIGHT_TEST_CACHE, 1);
    unsetenv("MESHWRIGHT_DATA_DIR");
    std::string name = (std::filesystem::temp_directory_path() / "meshwright-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  /// `command` goes through the shell; "meshwright" in front is the built binary.
  CliResult Shell(const std::string& command) const {
    const std::string out = Path("stdout"), err = Path("stderr");
    const int status =
        std::system(("( " + command + " ) >" + out + " 2>" + err + " </dev/null").c_str());
    CliResult result;
    result.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = ReadFile(out);
    result.err = ReadFile(err);
    return result;
  }
  CliResult Meshwright(const std::string& arguments) const {
    return Shell(Binary() + " " + arguments);
  }
  static std::string Binary() { return MESHWRIGHT_BINARY; }

  /// A plan file for CPU ranks of the tiny GPT with a short sequence.
  std::string TinyPlan(const std::string& axes, const std::string& name = "plan.json") const {
    const CliResult result =
        Meshwright("plan --model gpt-tiny --cluster cpu --global-batch 4 --seq 32 " + axes +
                   " -o " + Path(name));
    EXPECT_EQ(result.exit, 0) << result.err;
    return Path(name);
  }

 private:
  std::string folder_;
};

}  // namespace meshwright::tools
