// One rank of a measurement of communication: its GPU, its communicators, its share of every case.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/cuda/call_timer.h"
#include "runtime/cuda/nccl_world.h"
#include "runtime/cuda/peer_copies.h"
#include "runtime/cuda/product_load.h"
#include "runtime/measure_communication.h"

namespace meshwright::runtime::cuda {

/// Every rank calls the same methods in the same order; a rank that takes no part in a case has
/// nothing to do there.
class CommunicationRank {
 public:
  CommunicationRank() = default;
  ~CommunicationRank();
  CommunicationRank(const CommunicationRank&) = delete;
  CommunicationRank& operator=(const CommunicationRank&) = delete;

  /// `world` is that of `store`; messages have at most `most_bytes`.
  Status SetUp(Store& store, Communicator& world, int ordinal, int64_t most_bytes);
  /// Whether this rank reaches its partner's memory; ranks beyond the first two do not.
  bool peers() const { return copies_ != nullptr; }
  bool TakesPart(const CommunicationCase& c) const { return world_->rank() < c.ranks; }

  /// Seconds of one operation in each of `rounds` runs; zeros on a rank that takes no part.
  Result<std::vector<double>> Time(const CommunicationCase& c, int rounds);

  struct Beside {
    double alone_s = 0.0, beside_s = 0.0;  ///< of a product
    bool covered = false;                  ///< the operations ended after the products
  };
  /// Products alone, then beside `calls` operations.
  Result<Beside> TimeBeside(const CommunicationCase& c, int calls);

  /// Frees what the ranks share; nothing else is called afterwards.
  Status Close(Communicator& world);

 private:
  Status MakeGroups(int64_t most_bytes);
  Status ConnectPeers(Communicator& world);
  Result<std::unique_ptr<Path>> PathOf(const CommunicationCase& c, int calls);

  FlightRecorder flights_{kFlights};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<FlightTracker> tracker_;
  std::vector<planner::Group> groups_;
  std::unique_ptr<NcclWorld> world_;
  DeviceMemory arena_;
  int64_t arena_bytes_ = 0;
  std::unique_ptr<PeerCopies> copies_;  ///< with all three channels; nullptr: the pair has none
  std::unique_ptr<ProductLoad> load_;
  CallTimer timer_;
  cudaEvent_t met_ = nullptr, done_ = nullptr;

  static constexpr size_t kFlights = 4096;  // as in a run
};

}  // namespace meshwright::runtime::cuda
