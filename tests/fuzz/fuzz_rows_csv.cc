// Tables of measured rows: whatever the text, rows that can be predicted or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "planner/validate/summary.h"

using namespace meshwright;
using namespace meshwright::planner::validate;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<std::vector<MeasuredRow>> rows = ReadMeasuredRows(text, "input");
  if (!rows.ok()) {
    if (rows.status().message().empty()) std::abort();
    return 0;
  }
  static CaseMaker* maker = new CaseMaker({}, {});  // keeps the profiles that it has read
  for (const MeasuredRow& row : *rows) {
    const Result<RowResult> result = PredictRow(*maker, row);
    if (!result.ok()) continue;
    const bool predicted = result->predicted_step_s.has_value();
    if (predicted != result->reason.empty()) std::abort();
    if (predicted && !(*result->predicted_step_s >= 0)) std::abort();
  }
  return 0;
}
