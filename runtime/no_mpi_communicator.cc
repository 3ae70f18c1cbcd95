// The MPI back-end of a build without MPI.
#include "runtime/mpi_communicator.h"

namespace meshwright::runtime {

bool MpiSession::Available() {
  return false;
}
bool MpiSession::Launched() {
  return false;
}

Result<std::unique_ptr<MpiSession>> MpiSession::Start(const CommOptions&) {
  return Unsupported(
      "this build has no MPI; install an MPI (libopenmpi-dev) and configure again, or run ranks as "
      "threads");
}

MpiSession::MpiSession(std::unique_ptr<Communicator> world) : world_(std::move(world)) {}
MpiSession::~MpiSession() = default;

}  // namespace meshwright::runtime
