// Matrix products of a GPU rank: cuBLASLt with descriptors and algorithms cached by product.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "runtime/cuda/gemm_choices.h"
#include "runtime/cuda/gemm_problem.h"
#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class CudaDevice;

/// Not thread-safe: one thread issues. The algorithms' workspace is the stream's scratch
/// (CudaDevice::workspace), one product at a time on a stream.
class GemmEngine {
 public:
  /// Reads earlier choices of this device and library version from `tuning_file` (may not exist;
  /// empty: choices are not kept).
  static Result<std::unique_ptr<GemmEngine>> Create(CudaDevice& device,
                                                    const std::string& tuning_file);
  ~GemmEngine();
  GemmEngine(const GemmEngine&) = delete;
  GemmEngine& operator=(const GemmEngine&) = delete;

  /// Off: products without a known choice take the heuristics' first proposal. On at first.
  void set_tune(bool tune) { tune_ = tune; }

  /// The product of a kLinear, kLinearInputGrad or kLinearWeightGrad op. `sm_target` is the number
  /// of multiprocessors to choose for when communication runs beside it; 0: all.
  static Result<GemmKey> KeyOf(const OpCall& call, int32_t sm_target = 0);

  /// Makes products ready to run: takes the known choice if cuBLASLt still accepts it, else tunes
  /// (synchronises; allocates for a while, so call it before the arena exists), and writes new
  /// choices to the file. Call for all products of a program before the first step.
  Status Prepare(std::span<const GemmKey> keys);
  Status Prepare(const OpCall& call);

  /// Times the proposals afresh, whatever is known, and takes the best: of those about as fast
  /// alone the one that is fastest under load (GemmTuner::FastestSustained).
  Status Tune(std::span<const GemmKey> keys);

  /// Enqueues a product. One that is not prepared takes its known choice or the heuristics' first
  /// proposal: nothing is timed here.
  Status Run(const GemmKey& key, const GemmOperands& operands, planner::StreamId stream);

  /// Choices as text, for ranks that must compute the same bits: one tunes, the others import
  /// before they prepare. kInvalidInput for choices of another device or library.
  std::string ExportChoices() const { return GemmChoicesText(machine_, choices_); }
  Status ImportChoices(const std::string& text);

  const GemmChoices& choices() const { return choices_; }
  const GemmMachine& machine() const { return machine_; }
  cublasLtHandle_t handle() const { return handle_; }

 private:
  struct Plan {
    std::unique_ptr<GemmProblem> problem;
    cublasLtMatmulAlgo_t algorithm{};
    int64_t workspace_bytes = 0;
  };

  explicit GemmEngine(CudaDevice& device) : device_(device) {}
  /// A plan by the known choice; kNotFound when there is none that can run.
  Status PlanByChoice(const GemmKey& key);
  Status PlanByHeuristics(const GemmKey& key);
  Status Save();

  CudaDevice& device_;
  bool tune_ = true;
  std::string tuning_file_;
  GemmMachine machine_;
  cublasLtHandle_t handle_ = nullptr;
  GemmChoices choices_;
  GemmChoices unsaved_;
  std::map<GemmKey, Plan> plans_;
};

}  // namespace meshwright::runtime::cuda
