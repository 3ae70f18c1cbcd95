#include <algorithm>

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
std::vector<CommunicationCase> Operations(int gpus, bool peers) {
  using planner::PeerCarrier;
  const GpuOptions limits;  // of a run that says nothing else
  std::vector<CommunicationCase> cases;
  const auto of_pairs = [&](OpKind kind, CommunicatorKind traffic) {
    const bool moves = kind == OpKind::kAllGather || kind == OpKind::kSend;
    cases.push_back({kind, traffic, PeerCarrier::kKernels, 2, planner::PeerKernelCtas(traffic)});
    if (moves) cases.push_back({kind, traffic, PeerCarrier::kCopyEngines, 2, 0});
  };
  for (const int ranks : CommunicationGroups(gpus)) {
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
      const PeerCarrier nccl = PeerCarrier::kNccl;
      cases.push_back({kind, CommunicatorKind::kTensor, nccl, ranks, limits.tensor_ctas});
      cases.push_back({kind, CommunicatorKind::kData, nccl, ranks, limits.data_ctas});
      if (peers && ranks == 2) {
        of_pairs(kind, CommunicatorKind::kTensor);
        of_pairs(kind, CommunicatorKind::kData);
      }
    }
    if (ranks != 2) continue;
    cases.push_back(
        {OpKind::kSend, CommunicatorKind::kEdge, PeerCarrier::kNccl, ranks, limits.edge_ctas});
    if (peers) of_pairs(OpKind::kSend, CommunicatorKind::kEdge);
  }
  return cases;
}

/// Larger messages never go by kernels.
int64_t MostBytesOf(const CommunicationCase& c) {
  const bool ring = c.kind == OpKind::kSend && c.carrier == planner::PeerCarrier::kKernels;
  return ring ? planner::kMostBufferedMessageBytes : kMostBytes;
}

}  // namespace

std::vector<int> CommunicationGroups(int gpus) {
  if (gpus < 2) return {};
  return gpus == 2 ? std::vector<int>{2} : std::vector<int>{2, gpus};
}

std::vector<CommunicationCase> CommunicationGrid(int gpus, bool peers) {
  std::vector<CommunicationCase> cases;
  for (CommunicationCase c : Operations(gpus, peers)) {
    for (c.bytes = kLeastBytes; c.bytes <= MostBytesOf(c); c.bytes *= 4) cases.push_back(c);
    c.held_out = true;
    for (const int64_t bytes : kHeldOutBytes) {
      c.bytes = bytes;
      if (bytes <= MostBytesOf(c)) cases.push_back(c);
    }
  }
  return cases;
}

std::vector<CommunicationCase> BesideGrid(int gpus, bool peers) {
  std::vector<CommunicationCase> cases = Operations(gpus, peers);
  for (CommunicationCase& c : cases) c.bytes = std::min(kBesideBytes, MostBytesOf(c));
  return cases;
}

}  // namespace meshwright::runtime
