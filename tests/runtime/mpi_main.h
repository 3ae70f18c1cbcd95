// MPI of a test program, see mpi_main.cc.
#pragma once

#include <memory>

#include "runtime/mpi_communicator.h"

namespace meshwright::runtime {

std::unique_ptr<MpiSession>& TestSession();

}  // namespace meshwright::runtime
