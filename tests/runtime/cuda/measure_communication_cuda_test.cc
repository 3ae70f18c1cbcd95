// Communication between the GPUs of this host. Ranks are processes, forked before anything of CUDA.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/measure_communication.h"
#include "runtime/ranks_text.h"
#include "tests/runtime/cuda/count_gpus.h"
#include "tests/runtime/processes.h"

namespace meshwright::runtime {
namespace {

/// Why a measurement is not what it should be; empty: it is.
std::string FaultOf(const CommunicationMeasurement& m, int gpus) {
  if (m.gpus != gpus || m.device.empty() || m.library.find("NCCL") == std::string::npos) {
    return "facts";
  }
  const auto grid = CommunicationGrid(gpus, m.peers);
  if (m.samples.size() != grid.size()) return "number of samples";
  for (size_t i = 0; i < grid.size(); ++i) {
    const CommunicationSample& s = m.samples[i];
    if (!(s.what == grid[i]) || !(s.seconds > 1e-6 && s.seconds < 1)) {
      return "sample " + std::to_string(i);
    }
  }
  if (m.beside.size() != BesideGrid(gpus, m.peers).size()) return "number of products";
  for (const BesideSample& s : m.beside) {
    if (!(s.alone_s > 1e-4 && s.beside_s > 0.9 * s.alone_s && s.beside_s < 4 * s.alone_s)) {
      return "products beside " + std::to_string(s.what.ctas) + " thread blocks";
    }
  }
  return m.elapsed_s < 40 ? "" : "it took " + std::to_string(m.elapsed_s) + " s";
}

TEST(MeasureCommunication, EveryOperationHasATimeAndAllRanksAgree) {
  const int gpus = runtime::CountGpus();
  if (gpus < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << gpus;
  const auto text =
      TextOfRanks({gpus, 90.0, 5.0}, [&](const LaunchFacts& facts) -> Result<std::string> {
        MW_ASSIGN_OR_RETURN(const CommunicationMeasurement m, MeasureCommunication(facts, {}));
        const std::string fault = FaultOf(m, gpus);
        if (!fault.empty()) return RunFailed(fault);
        return std::string("fine");
      });
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text, "fine");
}

TEST(MeasureCommunication, OneRankIsRefused) {
  const auto measured = MeasureCommunication({}, {});
  ASSERT_FALSE(measured.ok());
  EXPECT_EQ(measured.status().code(), StatusCode::kInvalidInput);
  EXPECT_THAT(measured.status().message(), testing::HasSubstr("needs two or more"));
}

}  // namespace
}  // namespace meshwright::runtime
