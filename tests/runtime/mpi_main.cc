// main of test programs that mpirun starts: MPI lives as long as the tests.
#include "tests/runtime/mpi_main.h"

#include <gtest/gtest.h>

#include <iostream>

namespace meshwright::runtime {

std::unique_ptr<MpiSession>& TestSession() {
  static std::unique_ptr<MpiSession> session;
  return session;
}

}  // namespace meshwright::runtime

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto session = meshwright::runtime::MpiSession::Start({30});
  if (!session.ok()) {
    std::cerr << session.status().message() << "\n";
    return 1;
  }
  meshwright::runtime::TestSession() = std::move(session).value();
  const int result = RUN_ALL_TESTS();
  meshwright::runtime::TestSession().reset();
  return result;
}
