// Our model YAML: whatever the text, a checked model that prints and reads back, or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "planner/ir/model_yaml.h"

using namespace meshwright;
using namespace meshwright::planner;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<ModelSpec> model = ParseModelYaml(text, "input");
  if (!model.ok()) {
    if (model.status().message().empty() || model.status().message().size() > 60000) std::abort();
    return 0;
  }
  if (TotalParameters(*model) < 0) std::abort();
  const Result<ModelSpec> again = ParseModelYaml(PrintModelYaml(*model), "printed");
  if (!again.ok() || !(*again == *model)) std::abort();
  if (Fingerprint(*again) != Fingerprint(*model)) std::abort();
  return 0;
}
