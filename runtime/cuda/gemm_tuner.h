// Times the proposals of cuBLASLt for one product on the present GPU: random data, cold L2, median
// of several. Owns its memory and stream; made for a tuning session and dropped after it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/gemm_choices.h"
#include "runtime/cuda/gemm_problem.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

struct GemmTunerOptions {
  int ordinal = 0;              ///< CUDA device
  int64_t workspace_bytes = 0;  ///< cap of the algorithms' workspace
  bool deterministic = false;
  int candidates = 24;     ///< proposals that are timed
  int screening_runs = 3;  ///< of every proposal
  int final_runs = 9;      ///< of the best few and of the first proposal
};

class GemmTuner {
 public:
  static Result<std::unique_ptr<GemmTuner>> Create(const GemmTunerOptions& options);
  ~GemmTuner();
  GemmTuner(const GemmTuner&) = delete;
  GemmTuner& operator=(const GemmTuner&) = delete;

  /// Blocks until the choice is known. kRunFailed, with the bytes, when GPU memory for the operands
  /// is short: tune before the arena is allocated.
  Result<GemmChoice> Tune(cublasLtHandle_t handle, const GemmProblem& problem);

  /// What Tune chooses from: the best few and the first proposal, in order of time, cold L2.
  Result<std::vector<GemmChoice>> Finalists(cublasLtHandle_t handle, const GemmProblem& problem);

  /// Of finalists that are about as fast alone, the one that is fastest once the power limit has
  /// set the clock, as in a training step: the one that takes the least energy. Its `seconds` stay
  /// those of the fastest alone. Takes 0.2 s for each of up to four; short products keep the first.
  Result<GemmChoice> FastestSustained(cublasLtHandle_t handle, const GemmProblem& problem,
                                      std::span<const GemmChoice> finalists);

  /// Median seconds of one algorithm over `runs`, cold L2.
  Result<double> Time(cublasLtHandle_t handle, const GemmProblem& problem, const GemmChoice& choice,
                      int runs);

 private:
  /// Device memory that only grows.
  struct Region {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  /// Operand sets at different addresses: consecutive runs find nothing of theirs in L2.
  struct Slots {
    int64_t count = 0;
    int64_t b = 0;            ///< offset inside a slot of the inputs
    int64_t bias = 0;         ///< the same
    int64_t input_bytes = 0;  ///< of a slot
    int64_t output_bytes = 0;
    int64_t shift = 0;  ///< added to addresses that are 256-byte aligned by nature
  };

  explicit GemmTuner(const GemmTunerOptions& options) : options_(options) {}
  Status Open();
  Slots SlotsOf(const GemmKey& key) const;
  Status Reserve(const Slots& slots);
  Status Grow(Region* region, int64_t bytes, bool random);
  GemmOperands SlotAt(const Slots& slots, int64_t index) const;
  /// Puts one run on the stream, with the operands of the next slot.
  Status RunNext(cublasLtHandle_t handle, const GemmProblem& problem, const Slots& slots,
                 const cublasLtMatmulAlgo_t& algorithm);
  /// Appends `runs` timings, in seconds.
  Status TimeRuns(cublasLtHandle_t handle, const GemmProblem& problem, const Slots& slots,
                  const cublasLtMatmulAlgo_t& algorithm, int runs, std::vector<double>* seconds);

  /// Of one run of many in a row, behind the time in which the clock settles.
  Result<double> SustainedSeconds(cublasLtHandle_t handle, const GemmProblem& problem,
                                  const Slots& slots, const GemmChoice& choice);

  GemmTunerOptions options_;
  int64_t l2_bytes_ = 0;
  int64_t next_slot_ = 0;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
  Region inputs_;  ///< random, never written
  Region outputs_;
  Region delay_;  ///< written to keep the GPU busy while the host enqueues
  Region workspace_;
};

}  // namespace meshwright::runtime::cuda
