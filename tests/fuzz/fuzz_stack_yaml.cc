// Stack files: whatever the text, a stack that prints and reads back, or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "planner/stack/stack_spec.h"

using namespace meshwright;
using namespace meshwright::planner::stack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<StackSpec> stack = ParseStack(text, "input");
  if (!stack.ok()) {
    if (stack.status().message().empty()) std::abort();
    return 0;
  }
  const Result<StackSpec> again = ParseStack(ToYaml(*stack), "printed");
  if (!again.ok() || ToYaml(*again) != ToYaml(*stack)) std::abort();
  return 0;
}
