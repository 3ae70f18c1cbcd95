// Any text as a topology capture: refused, or a report that holds together and makes a cluster.
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "topologies/cluster_io.h"
#include "topologies/parse_nvidia_smi_topo.h"

using namespace meshwright;              // NOLINT(google-build-using-namespace)
using namespace meshwright::topologies;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto report = ParseNvidiaSmiTopo({reinterpret_cast<const char*>(data), size});
  if (!report.ok()) {
    if (report.status().message().empty()) std::abort();
    return 0;
  }
  const size_t n = static_cast<size_t>(report->gpus) + report->nics.size();
  if (report->gpus < 1 || report->links.size() != n * n) std::abort();
  if (n > 64) return 0;  // keeps runs short
  if (ToJsonText(*report).empty()) std::abort();
  TopoOptions options;
  options.gpu = report->nvlink_components.empty() ? "L40S" : "H100-SXM";
  const auto cluster = ClusterFromTopo(*report, options);
  if (!cluster.ok()) std::abort();
  if (cluster->device_count() != report->gpus) std::abort();
  std::vector<int> all(static_cast<size_t>(report->gpus));
  std::iota(all.begin(), all.end(), 0);
  if (!cluster->Group(all).ok()) std::abort();
  return 0;
}
