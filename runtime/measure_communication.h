// What communication between the GPUs of this host takes, by operation, class of traffic, size of
// the group and of the message, and how much it slows the products beside it. A grid that belongs
// to no plan; fitting is the cost models' work.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/ir/peer_traffic.h"
#include "planner/ir/program.h"
#include "runtime/launch.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// An operation in bf16 as the executor issues it.
struct CommunicationCase {
  planner::OpKind kind = planner::OpKind::kAllReduce;  ///< kSend: from rank 0 to rank 1
  planner::CommunicatorKind traffic = planner::CommunicatorKind::kTensor;
  planner::PeerCarrier carrier = planner::PeerCarrier::kNccl;  ///< others for pairs
  int ranks = 2;                                               ///< the first of the host
  int ctas = 0;  ///< most thread blocks; 0: copy engines
  /// Buffer of an all-reduce, output of an all-gather, input of a reduce-scatter, message.
  int64_t bytes = 0;
  bool held_out = false;  ///< not for fitting: tells how well a fit does
  friend bool operator==(const CommunicationCase&, const CommunicationCase&) = default;
};

/// Sizes of the groups that are measured: 2, and all GPUs of the host where there are more.
std::vector<int> CommunicationGroups(int gpus);

/// 64 KiB to 256 MiB in factors of 4, and two sizes between them to be held out, of every operation
/// of tensor traffic, data traffic and a pipeline edge, by NCCL and for `peers`, pairs that reach
/// each other's memory, by what else carries it; smaller groups first, the sizes of an operation in
/// a row. `gpus` >= 2.
std::vector<CommunicationCase> CommunicationGrid(int gpus, bool peers);

/// Of each operation of the grid the size that runs beside products.
std::vector<CommunicationCase> BesideGrid(int gpus, bool peers);

/// One of many in a row, issued ahead as in a training step.
struct CommunicationSample {
  CommunicationCase what;
  double seconds = 0.0;  ///< of the slowest rank, median
};

/// Products of 8192 x 8192 x 8192 in bf16, alone and while the operation runs all the time.
struct BesideSample {
  CommunicationCase what;
  double alone_s = 0.0, beside_s = 0.0;  ///< a product, of the slowest rank, medians
};

struct CommunicationMeasurement {
  std::string device;   ///< name of GPU 0 that the driver gives
  std::string library;  ///< "NCCL 2.28.9"
  int gpus = 0;
  bool nvlink = false;  ///< between the first two GPUs; else PCIe
  bool peers = false;   ///< they reach each other's memory
  std::vector<CommunicationSample> samples;
  std::vector<BesideSample> beside;
  double elapsed_s = 0.0;
};

struct MeasureCommunicationOptions {
  std::function<void(const std::string&)> progress;  ///< may be empty
};

/// Called by a process a GPU, all of one host; all get the same answer. Takes under half a minute
/// and 4 GiB of each GPU's memory. Errors: kUnsupported in a build without CUDA, kInvalidInput for
/// fewer than two ranks, kRunFailed when the driver or NCCL refuses or a rank does not come.
Result<CommunicationMeasurement> MeasureCommunication(const LaunchFacts& facts,
                                                      const MeasureCommunicationOptions& options);

}  // namespace meshwright::runtime
