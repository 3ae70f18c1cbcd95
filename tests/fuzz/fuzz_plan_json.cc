// plan.json: whatever the text, a plan that is written and read back equal, or an error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "planner/ir/plan.h"

using namespace meshwright;
using namespace meshwright::planner;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Result<Plan> plan = ParsePlanJson(text, "input");
  if (!plan.ok()) {
    if (plan.status().code() != StatusCode::kInvalidInput) std::abort();
    if (plan.status().message().empty() || plan.status().message().size() > 60000) std::abort();
    return 0;
  }
  // Legal or not, the checks of a plan that could be read must end.
  (void)CheckPlan(*plan).ok();
  (void)ShortName(*plan);
  const Result<Plan> again = ParsePlanJson(WritePlanJson(*plan), "written");
  if (!again.ok() || !(*again == *plan)) std::abort();
  return 0;
}
