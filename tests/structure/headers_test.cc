// Every public header compiles alone: the build made a translation unit of each; here the tree is
// walked again, so that a header which the build did not see is an error and not a gap.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/structure/compiled_headers.h"

namespace meshwright::structure {

std::set<std::string>& CompiledHeaders() {
  static std::set<std::string> headers;
  return headers;
}

namespace {

namespace fs = std::filesystem;

TEST(Headers, EachWasCompiledAlone) {
  const fs::path root = MESHWRIGHT_SOURCE_DIR;
  std::set<std::string> in_tree;
  for (const char* box : {"topologies", "planner", "cost_models", "runtime", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / box)) {
      if (entry.path().extension() != ".h") continue;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      if (MESHWRIGHT_HAVE_CUDA || !path.starts_with("runtime/cuda/")) in_tree.insert(path);
    }
  }
  ASSERT_GE(in_tree.size(), 2U) << "no headers under " << root;
  EXPECT_EQ(CompiledHeaders(), in_tree) << "run cmake again: the tree changed since configuration";
}

}  // namespace
}  // namespace meshwright::structure
