#include "runtime/gpu_run.h"
#include "runtime/measure_communication.h"

namespace meshwright::runtime {
namespace {

using planner::CommunicatorKind;
using planner::OpKind;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int64_t kLeastBytes = 64 * kKiB, kMostBytes = 256 * kMiB;
constexpr int64_t kHeldOutBytes[] = {512 * kKiB, 32 * kMiB};
constexpr int64_t kBesideBytes = 64 * kMiB;  // long enough that starts do not count

/// Operations without their size.
std::vector<CommunicationCase> Operations(int gpus, bool copy_engines) {
  const GpuOptions limits;  // of a run that says nothing else
  std::vector<CommunicationCase> cases;
  for (const int ranks : CommunicationGroups(gpus)) {
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
      cases.push_back({kind, CommunicatorKind::kTensor, false, ranks, limits.tensor_ctas});
      cases.push_back({kind, CommunicatorKind::kData, false, ranks, limits.data_ctas});
      if (copy_engines && ranks == 2) {
        cases.push_back({kind, CommunicatorKind::kTensor, true, ranks, 0});
        cases.push_back({kind, CommunicatorKind::kData, true, ranks, 0});
      }
    }
    if (ranks != 2) continue;
    cases.push_back({OpKind::kSend, CommunicatorKind::kEdge, false, ranks, limits.edge_ctas});
    if (copy_engines) cases.push_back({OpKind::kSend, CommunicatorKind::kEdge, true, ranks, 0});
  }
  return cases;
}

}  // namespace

std::vector<int> CommunicationGroups(int gpus) {
  if (gpus < 2) return {};
  return gpus == 2 ? std::vector<int>{2} : std::vector<int>{2, gpus};
}

std::vector<CommunicationCase> CommunicationGrid(int gpus, bool copy_engines) {
  std::vector<CommunicationCase> cases;
  for (CommunicationCase c : Operations(gpus, copy_engines)) {
    for (c.bytes = kLeastBytes; c.bytes <= kMostBytes; c.bytes *= 4) cases.push_back(c);
    c.held_out = true;
    for (const int64_t bytes : kHeldOutBytes) {
      c.bytes = bytes;
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<CommunicationCase> BesideGrid(int gpus, bool copy_engines) {
  std::vector<CommunicationCase> cases = Operations(gpus, copy_engines);
  for (CommunicationCase& c : cases) c.bytes = kBesideBytes;
  return cases;
}

}  // namespace meshwright::runtime
