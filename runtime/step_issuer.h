// Walks the task list of a step and appends its ops to streams, the same way on CPUs and GPUs.
#pragma once

#include <cstdint>

#include "planner/ir/program.h"
#include "runtime/rank_setup.h"
#include "runtime/stream_sink.h"

namespace meshwright::runtime {

class StepIssuer {
 public:
  /// `hook`: the program pauses between gradients and optimizer, see kGradientHook.
  StepIssuer(const RankSetup& setup, bool hook) : setup_(setup), hook_(hook) {}

  /// Event registers that a sink needs: those of the program and our own behind them.
  int events() const;

  /// Appends everything of step `step`. Items are IssuedOps of the setup or one of the two below.
  void Issue(int64_t step, StreamSink& sink) const;

  /// Writes the step scalars; on the compute stream, before any op that reads them.
  const void* write_scalars() const { return &write_scalars_; }
  /// Everything issued before is done, and no optimizer step has begun.
  const void* gradient_hook() const { return &gradient_hook_; }

 private:
  void IssueBegin(int64_t step, StreamSink& sink) const;
  void IssueGradientHook(const IssuedOp& before, int64_t step, StreamSink& sink) const;

  const RankSetup& setup_;
  const bool hook_;
  const char write_scalars_ = 0;
  const char gradient_hook_ = 0;
};

}  // namespace meshwright::runtime
