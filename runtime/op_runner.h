// Runs single ops of a rank: kernels by table, communication by communicator, host ops here.
#pragma once

#include <memory>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/executor.h"
#include "runtime/issue_order.h"
#include "runtime/step_recorder.h"

namespace meshwright::runtime {

class OpRunner {
 public:
  /// All references outlive the runner. `communicators` by class-local index.
  OpRunner(const RankContext& context, const KernelTable& kernels, DataSource& data,
           const RunOptions& options, StepRecorder& recorder, std::byte* arena,
           std::vector<Communicator*> communicators);

  /// kUnsupported when an op of the program has no implementation here.
  static Status CheckKinds(const IssueOrder& order, const KernelTable& kernels);

  /// Called on the worker of the op's stream.
  Status Run(const IssuedOp& op, int64_t step);
  /// Writes the learning rate and the number of the step to the step scalars.
  void WriteStepScalars(int64_t step);

 private:
  Status Communicate(const OpCall& call);
  Status ReadBack(const OpCall& call, int64_t step);

  const RankContext& context_;
  const KernelTable& kernels_;
  DataSource& data_;
  const RunOptions& options_;
  StepRecorder& recorder_;
  std::byte* const arena_;
  const std::vector<Communicator*> communicators_;
  std::vector<std::vector<int32_t>> samples_;  ///< by stream: the ids of one sample
};

}  // namespace meshwright::runtime
