// NCCL for the ranks of a run: one communicator of all ranks, from which those of the groups are
// split.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/ir/peer_traffic.h"
#include "planner/ir/program.h"
#include "runtime/cuda/device_communicator.h"
#include "runtime/group_use.h"
#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

struct NcclOptions {
  /// For the ranks to meet in anything that is done here. Seconds, > 0.
  double deadline_s = 60.0;
  /// Thread blocks (CTAs) that an operation may take, by kind of group; NCCL is given the number as
  /// least and most; 0: NCCL chooses by itself. Each costs about 18 MiB of device memory for
  /// collectives (2 x H200, NCCL 2.28, cost_models/h200_runs.md), and an SM of the GEMM that runs
  /// beside it.
  int tensor_ctas = planner::NcclCtas(planner::CommunicatorKind::kTensor);
  int data_ctas = planner::NcclCtas(planner::CommunicatorKind::kData);
  int edge_ctas = planner::NcclCtas(planner::CommunicatorKind::kEdge);
  /// World, key-value copies, tied embeddings.
  int other_ctas = planner::NcclCtas(planner::CommunicatorKind::kWorld);
  bool share_devices = false;  ///< several ranks a GPU are no error
  /// Told of every operation but those of the warm-up; may be nullptr, else outlives the world.
  DeviceCommunicatorObserver* observer = nullptr;
};
/// That of the options for a kind of group.
int CtasOf(const NcclOptions& options, planner::CommunicatorKind kind);

/// This rank's end of NCCL. Made once in a run, on the thread whose current device is the rank's.
class NcclWorld {
 public:
  /// Meets the other ranks of `store` and makes the communicator of all of them. Refuses two ranks
  /// on one GPU, unless the options allow it, and CUDA_LAUNCH_BLOCKING with several ranks, under
  /// which NCCL hangs. Errors: kInvalidInput for those two; kRunFailed for what NCCL or CUDA
  /// report, a deadline that passed, or the reason for which another rank has aborted the run.
  static Result<std::unique_ptr<NcclWorld>> Create(Store& store, const NcclOptions& options,
                                                   int device);
  /// As Close, without its error.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  /// Makes the communicators of all groups, in index order, and runs each operation of `uses` (an
  /// entry a group, see UsesOfGroups) once in several sizes, so that no connection is made later.
  /// Takes up to 64 MiB of device memory for the time of the call. All ranks call it, once, with
  /// the same arguments. Errors as of Create; they name the group.
  Status MakeGroups(const std::vector<planner::Group>& groups,
                    const std::vector<std::vector<GroupUse>>& uses);
  /// The communicator of a group; nullptr when this rank is not in it. Groups of one rank have one.
  DeviceCommunicator* group(size_t index) const;
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// An error that NCCL has found in the background on one of the communicators. Any thread.
  Status CheckAsync();

  /// Ends all operations of all communicators, with a thread for each of them; later ones fail.
  /// False when that is not done after `deadline_s`: the process should then be left by _exit.
  /// Any thread; communicators stay allocated for those that still hold them.
  bool Abort(double deadline_s);

  /// Waits for all operations and frees the communicators, in the same order on all ranks. Not
  /// after Abort. kRunFailed when it takes longer than the deadline of the options.
  Status Close();

 private:
  class Impl;
  NcclWorld(std::shared_ptr<Impl> impl, int rank, int size);

  std::shared_ptr<Impl> impl_;  ///< shared with threads that may hang in NCCL for ever
  const int rank_;
  const int size_;
};

/// "NCCL 2.28.9", of the library that runs.
std::string NcclVersionText();

}  // namespace meshwright::runtime::cuda
