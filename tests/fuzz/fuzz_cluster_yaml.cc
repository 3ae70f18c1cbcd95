// Any text as a cluster description: refused, or a cluster whose text form reads back equal.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "topologies/cluster.h"
#include "topologies/cluster_io.h"

using namespace meshwright;              // NOLINT(google-build-using-namespace)
using namespace meshwright::topologies;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto cluster = ParseClusterYaml({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  if (!cluster.ok()) {
    if (cluster.status().message().empty()) std::abort();
    return 0;
  }
  const auto back = ParseClusterYaml(ToYaml(cluster->spec()), "back.yaml");
  if (!back.ok() || !(back->spec() == cluster->spec())) std::abort();
  if (cluster->device_count() < 1 || cluster->HostSpecOf(0).nodes.size() > 64) return 0;
  const int last = static_cast<int>(cluster->device_count()) - 1;
  const std::vector<int> ends = last > 0 ? std::vector<int>{0, last} : std::vector<int>{0};
  const auto group = cluster->Group(ends);
  if (group.ok() && group->size != static_cast<int>(ends.size())) std::abort();
  const auto nic = cluster->NearestNic(last);
  if (nic.ok() && nic->sharers < 1) std::abort();
  if (last < 4096 && !cluster->BestOrder(std::vector<int>{2 - (last == 0 ? 1 : 0)}).ok())
    std::abort();
  return 0;
}
