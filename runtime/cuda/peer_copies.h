// Which groups of ranks of a run exchange data without NCCL, and their ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/communicator.h"
#include "runtime/cuda/gpu_memory.h"
#include "runtime/cuda/peer_channel.h"
#include "runtime/peer_copy_options.h"

namespace meshwright::runtime::cuda {

/// A rank's side of a group.
struct PeerSide {
  const planner::RankProgram* program = nullptr;
  int32_t local = 0;  ///< the group among the program's communicators
};
/// The ops of the member at `position` that go without NCCL, in issue order, as PeerChannel::Follow
/// takes them; nullopt on all members when they do not match. Errors as of MakeIssueOrder.
Result<std::optional<std::vector<PeerOp>>> PeerOps(std::span<const PeerSide> members,
                                                   size_t position, const PeerRoutes& routes);

/// The channels of one rank. Buffers of their operations lie in the arena.
class PeerCopies {
 public:
  /// Called by all ranks once, after they have allocated their arenas. Groups of one host each of
  /// whose GPUs reaches the next one's memory get a channel on all ranks if it has something to
  /// carry, others on none; a rank without a channel gets nullptr.
  static Result<std::unique_ptr<PeerCopies>> Connect(Communicator& world,
                                                     const planner::Programs& programs, int device,
                                                     std::byte* arena,
                                                     const PeerCopyOptions& options);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// Of a group (index into Programs::groups); nullptr: NCCL carries its traffic.
  PeerChannel* channel(size_t group) const { return channels_[group].get(); }

  /// Lets streams that wait for another rank go on, with wrong data: for a run that has failed. In
  /// a thread of its own, since the driver may hold it up until NCCL's operations have been
  /// aborted. Any thread, once.
  void Release();

 private:
  struct Entry;
  struct Mapping;
  PeerCopies(int device, size_t groups);
  Status Share(std::byte* arena, Entry* own);
  Result<bool> Map(const Entry& theirs, int rank);
  Status Open(const planner::Programs& programs, int rank, size_t group,
              const PeerCopyOptions& options);

  const int device_;
  DeviceMemory mailboxes_;  ///< of the rank's groups, one behind the other
  int64_t mailbox_bytes_ = 0;
  cudaStream_t release_ = nullptr;
  std::thread releasing_;
  std::vector<std::unique_ptr<Mapping>> mappings_;      ///< by rank; nullptr: not reached
  std::vector<std::unique_ptr<PeerChannel>> channels_;  ///< by group
};

}  // namespace meshwright::runtime::cuda
