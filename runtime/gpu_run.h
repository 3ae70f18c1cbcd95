// Runs the program of this process's rank on a GPU. Without a CUDA toolkit the build has functions
// that say so.
#pragma once

#include <string>
#include <vector>

#include "planner/ir/peer_traffic.h"
#include "planner/ir/program.h"
#include "runtime/communicator.h"
#include "runtime/data_source.h"
#include "runtime/executor.h"
#include "runtime/peer_copy_options.h"
#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct GpuOptions {
  int device = 0;              ///< CUDA ordinal
  bool deterministic = false;  ///< the same bits from run to run
  /// Time GEMM algorithms before the first step and take the best; otherwise the library's first
  /// proposal.
  bool tune = true;
  /// Thread blocks of NCCL operations by kind of group.
  int tensor_ctas = planner::NcclCtas(planner::CommunicatorKind::kTensor);
  int data_ctas = planner::NcclCtas(planner::CommunicatorKind::kData);
  int edge_ctas = planner::NcclCtas(planner::CommunicatorKind::kEdge);
  PeerCopyOptions peer_copies;
  /// Ranks may share a GPU, as it happens where `device` is the same for several: to try a plan
  /// on fewer GPUs than it has ranks. NCCL takes them for ranks of different hosts; slow.
  bool share_devices = false;
  bool graphs = true;         ///< runs of kernels as CUDA graphs
  bool time_ops = false;      ///< measure every op of the last step
  std::string tuning_file;    ///< choices of earlier runs; empty: none are kept
  std::string flight_record;  ///< where the last operations go on failure; empty: nowhere
};

/// kUnsupported when this build has no CUDA. Asks no driver, so it may be called before a fork.
Status CheckGpuBuild();

/// GPUs that this process sees. kUnsupported when the build has no CUDA, kRunFailed when the driver
/// refuses.
Result<int> VisibleGpus();

/// As Execute, on a GPU: `store` is that of the run, `world` is made on it, `rank` = world.rank().
/// `on_gradients` and `on_finish` see copies of the arena in host memory.
Result<RunSummary> ExecuteOnGpu(const planner::Programs& programs, Store& store,
                                Communicator& world, DataSource& data, const RunOptions& options,
                                const GpuOptions& gpu);

}  // namespace meshwright::runtime
