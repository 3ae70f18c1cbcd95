#include "planner/stack/stack_spec.h"

#include <gtest/gtest.h>

#include <string>

namespace meshwright::planner::stack {
namespace {

TEST(StackSpec, ShippedFilesReadAndWriteBack) {
  const std::vector<std::string> names = ShippedStackNames();
  ASSERT_GE(names.size(), 5u);
  for (const std::string& name : names) {
    const Result<StackSpec> stack = LoadStack(name);
    ASSERT_TRUE(stack.ok()) << stack.status().message();
    EXPECT_EQ(stack->name, name);
    const Result<StackSpec> again = ParseStack(ToYaml(*stack), "printed");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(ToYaml(*again), ToYaml(*stack)) << name;
    EXPECT_EQ(again->lowering.fused_attention, stack->lowering.fused_attention);
    EXPECT_EQ(again->sources, stack->sources);
  }
}

/// The text of a shipped stack with `from` replaced.
std::string With(const std::string& from, const std::string& to) {
  std::string text = ToYaml(LoadStack("megatron").value());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(StackSpec, ErrorsNameLineAndField) {
  const struct {
    std::string text, expected;
  } cases[] = {
      {With("fused_attention: true", "fused_attention: maybe"), "lowering.fused_attention: found"},
      {With("  dropout: false\n", ""), "lowering.dropout: is missing"},
      {With("[zero1, none]", "[zero9]"), "offers.sharding: found 'zero9'; allowed: none, zero1"},
      {With("max_virtual_stages: 24", "max_virtual_stages: 0"), "allowed: a number from 1"},
      {With("executable: false", "executable: false\nsurprise: 1"), "unknown field 'surprise'"},
      {With("meshwright_stack: 1", "meshwright_stack: 7"), "found version '7'; allowed: 1"},
      {"- 1\n", "found no mapping"},
      {"a: [", "line 1"},
  };
  for (const auto& c : cases) {
    const Result<StackSpec> stack = ParseStack(c.text, "s.yaml");
    ASSERT_FALSE(stack.ok()) << c.expected;
    EXPECT_EQ(stack.status().code(), StatusCode::kInvalidInput);
    EXPECT_NE(stack.status().message().find(c.expected), std::string::npos)
        << stack.status().message();
    EXPECT_NE(stack.status().message().find("s.yaml:"), std::string::npos);
  }
}

TEST(StackSpec, UnknownNamesListTheShippedOnes) {
  const Result<StackSpec> stack = LoadStack("nemo");
  ASSERT_FALSE(stack.ok());
  EXPECT_NE(stack.status().message().find("megatron"), std::string::npos);
}

}  // namespace
}  // namespace meshwright::planner::stack
