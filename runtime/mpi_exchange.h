// Messages between the members of an MPI communicator: all that the MPI back-end asks of MPI. This
// header knows no MPI; mpi_exchange.cc is the only file that calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace meshwright::runtime {

/// Bytes that go to or come from one member.
struct MpiTransfer {
  int peer = 0;
  std::byte* buffer = nullptr;
  int64_t bytes = 0;
};

/// What a message belongs to; sender and receiver compare it.
struct MpiTag {
  CommOp op = CommOp::kBarrier;
  planner::DType dtype = planner::DType::kI64;
  int phase = 0;  ///< 1: results, which come after a sum or a gathering
};

/// One communicator of MPI.
class MpiExchange {
 public:
  /// MPI_Init and a duplicate of MPI_COMM_WORLD. kUnsupported when MPI lacks what we need.
  static Result<std::unique_ptr<MpiExchange>> Start(const CommOptions& options);
  static void Finalize();
  ~MpiExchange();
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;

  const std::string& name() const { return name_; }
  /// World ranks in communicator order.
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  bool aborted() const;

  /// Sends and receives all of it; done when every message was received. At most one send to and
  /// one receive from a member. Ends early with an error when a message is not what is expected,
  /// when the deadline passes or after Abort. `sequence`: number of the operation, for messages.
  Status Run(const MpiTag& tag, const std::vector<MpiTransfer>& sends,
             const std::vector<MpiTransfer>& receives, int64_t sequence);

  /// As MPI_Comm_split, nullptr for a negative color. Blocks without a deadline: all members have
  /// to be about to call it.
  Result<std::unique_ptr<MpiExchange>> Split(int color, int key, const std::string& name);

  void Abort(const Status& reason);
  Status Reason() const;

 private:
  struct Shared;
  struct Handle;
  struct Flight;
  MpiExchange(std::shared_ptr<Shared> shared, std::unique_ptr<Handle> handle, std::string name);

  Status Post(const MpiTag& tag, int64_t sequence, Flight* flight);
  Status Poll(const MpiTag& tag, int64_t sequence, std::vector<Flight>* flights, bool* all_done,
              bool* moved);
  Status Stuck(const MpiTag& tag, int64_t sequence, const std::vector<Flight>& flights,
               double after_s) const;
  void GiveUp(std::vector<Flight>* flights);

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Handle> handle_;
  const std::string name_;
  std::vector<int> ranks_;
  int rank_ = 0;
};

}  // namespace meshwright::runtime
