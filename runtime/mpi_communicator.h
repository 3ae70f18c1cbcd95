// Communicators of ranks that are processes of one MPI job. CMake picks mpi_communicator.cc, or
// no_mpi_communicator.cc where there is no MPI.
#pragma once

#include <memory>

#include "runtime/communicator.h"

namespace meshwright::runtime {

/// MPI of this process, from MPI_Init to MPI_Finalize: at most one in the life of a process.
///
/// Sends are synchronous (done when received), so eager buffers hide no missing partner. Waiting
/// threads sleep between polls; nobody spins. Sums have the order of all back-ends. A member that
/// finds a disagreement returns the error; Abort tells the other processes, which stop waiting.
class MpiSession {
 public:
  /// Whether this build has MPI.
  static bool Available();
  /// Whether a launcher (mpirun, srun with PMI) started this process as a rank.
  static bool Launched();

  /// kUnsupported without MPI in the build or without MPI_THREAD_SERIALIZED.
  static Result<std::unique_ptr<MpiSession>> Start(const CommOptions& options);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  Communicator& world() { return *world_; }

 private:
  explicit MpiSession(std::unique_ptr<Communicator> world);
  std::unique_ptr<Communicator> world_;
};

}  // namespace meshwright::runtime
