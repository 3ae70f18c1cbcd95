#include "tests/structure/include_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace meshwright::structure {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Content of every C++ file of the repository, by path from its root.
std::map<std::string, std::string> ReadTree() {
  const fs::path root = MESHWRIGHT_SOURCE_DIR;
  std::map<std::string, std::string> texts;
  for (const char* folder : {"topologies", "planner", "cost_models", "runtime", "tools", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh") {
        continue;
      }
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      texts[fs::relative(entry.path(), root).generic_string()] = text.str();
    }
  }
  return texts;
}

TEST(IncludeRules, HoldInTheWholeTree) {
  const auto texts = ReadTree();
  EXPECT_GE(texts.size(), 5U) << "nothing to check";
  for (const auto& [path, text] : texts) {
    EXPECT_THAT(CheckIncludes(path, text), IsEmpty()) << path;
  }
  EXPECT_THAT(CheckFixedWidth(texts), IsEmpty());
}

TEST(IncludeRules, ArrowsAgainstTheGrainAreRefused) {
  const struct {
    const char* path;
    const char* target;
  } wrong[] = {
      {"topologies/a.cc", "planner/ir/plan.h"},
      {"planner/ir/a.cc", "cost_models/price.h"},
      {"planner/ir/a.cc", "planner/search/search.h"},
      {"cost_models/a.cc", "planner/lower/lower.h"},
      {"cost_models/a.cc", "runtime/kernels.h"},
      {"runtime/a.cc", "planner/lower/lower.h"},
      {"runtime/a.cc", "cost_models/price.h"},
      {"runtime/a.cc", "runtime/cuda/gemm.h"},
      {"runtime/cuda/a.cu", "cost_models/price.h"},
      {"tools/a.cc", "runtime/cuda/gemm.h"},
      {"planner/search/a.cc", "runtime/kernels.h"},
      {"planner/search/a.cc", "tools/cli.h"},
      {"tools/a.cc", "tests/fixture.h"},
      {"tools/a.cc", "cli.h"},
  };
  for (const auto& [path, target] : wrong) {
    EXPECT_THAT(CheckIncludes(path, std::string("\n#include \"") + target + "\"\n"),
                ElementsAre(HasSubstr(std::string(path) + ":2: ")))
        << path << " -> " << target;
  }
}

TEST(IncludeRules, ArrowsAlongTheGrainAreAllowed) {
  EXPECT_THAT(CheckIncludes("planner/ir/a.cc", "#include \"topologies/status.h\"\n"), IsEmpty());
  EXPECT_THAT(CheckIncludes("cost_models/a.cc", "#include \"planner/ir/plan.h\"\n"), IsEmpty());
  EXPECT_THAT(CheckIncludes("planner/search/a.cc", "#include \"planner/lower/lower.h\"\n"),
              IsEmpty());
  EXPECT_THAT(CheckIncludes("runtime/a.cc", "# include \"planner/ir/plan.h\"\n"), IsEmpty());
  EXPECT_THAT(CheckIncludes("tools/a.cc", "#include \"runtime/executor.h\"\n"), IsEmpty());
  EXPECT_THAT(CheckIncludes("tests/planner/a.cc", "#include \"tests/planner/b.h\"\n"), IsEmpty());
}

TEST(IncludeRules, FoldersOutsideTheTableAreRefused) {
  EXPECT_THAT(CheckIncludes("planner/loose.cc", ""), ElementsAre(HasSubstr("in no box")));
}

TEST(IncludeRules, RelativeAndMisquotedPathsAreRefused) {
  EXPECT_THAT(CheckIncludes("runtime/a.cc", "#include \"../planner/ir/plan.h\"\n"),
              ElementsAre(HasSubstr("relative path")));
  EXPECT_THAT(CheckIncludes("runtime/a.cc", "#include \"planner/ir/../search/search.h\"\n"),
              ElementsAre(HasSubstr("relative path")));
  EXPECT_THAT(CheckIncludes("runtime/a.cc", "#include <planner/search/search.h>\n"),
              ElementsAre(HasSubstr("in quotes")));
}

TEST(IncludeRules, HeavyHeadersStayOutOfHeaders) {
  for (const char* heavy : {"nlohmann/json.hpp", "yaml-cpp/yaml.h", "CLI/CLI.hpp",
                            "spdlog/spdlog.h", "mpi.h", "cblas.h", "cuda_runtime.h", "nccl.h"}) {
    const std::string line = std::string("#include <") + heavy + ">\n";
    EXPECT_THAT(CheckIncludes("tools/a.h", "#pragma once\n" + line),
                ElementsAre(HasSubstr("belongs in a .cc")))
        << heavy;
    EXPECT_THAT(CheckIncludes("tools/a.cc", line), IsEmpty()) << heavy;
  }
  EXPECT_THAT(CheckIncludes("tools/a.h", "#pragma once\n#include <nlohmann/json_fwd.hpp>\n"),
              IsEmpty());
}

TEST(IncludeRules, HeadersHaveAGuard) {
  EXPECT_THAT(CheckIncludes("tools/a.h", "int x;\n"), ElementsAre(HasSubstr("#pragma once")));
}

TEST(IncludeRules, FixedWidthTypesNeedCstdintDirectlyOrThroughOurHeaders) {
  const std::string use = "int64_t x;\n";
  EXPECT_THAT(CheckFixedWidth({{"a.h", use}}), ElementsAre(HasSubstr("a.h:1: ")));
  EXPECT_THAT(CheckFixedWidth({{"a.h", "#include <cstdint>\n" + use}}), IsEmpty());
  EXPECT_THAT(CheckFixedWidth({{"a.cc", "#include \"b.h\"\n" + use},
                               {"b.h", "#include \"c.h\"\n#include \"b.h\"\n"},
                               {"c.h", "#include <cstdint>\n"}}),
              IsEmpty());
  EXPECT_THAT(CheckFixedWidth({{"a.cc", "#include \"b.h\"\n" + use}, {"b.h", ""}}),
              ElementsAre(HasSubstr("a.cc:1: ")));
}

TEST(IncludeRules, WhatOnlyLooksLikeAnIncludeIsLeftAlone) {
  EXPECT_THAT(CheckIncludes("topologies/a.cc", "// #include \"tools/cli.h\"\n#include\n#incl\n"),
              IsEmpty());
}

}  // namespace
}  // namespace meshwright::structure
