// Model FLOPs: what a training step must compute, whatever a plan recomputes. Basis of TFLOP/s and
// MFU.
#pragma once

#include <cstdint>

#include "planner/ir/model_spec.h"
#include "topologies/units.h"

namespace meshwright::planner {

/// Parameters of the matrix products that one token passes: projections, MLPs (of mixtures of
/// experts the router, the shared experts and top_k experts of width expert_ffn) and the head, tied
/// or not. Not: embedding look-ups, norms, biases, experts that the token does not visit,
/// multi-token prediction layers.
double MatmulParametersPerToken(const ModuleSpec& module);

/// Query-key pairs of one sequence and layer: S^2, causal S^2 / 2; with a window of w < S tokens
/// S w - w^2 / 2 (causal) or twice that.
double AttentionPairs(const AttentionSpec& attention, int64_t sequence);

/// FLOPs of one step over `batch` sequences of `sequence` tokens:
///   6 x MatmulParametersPerToken x tokens                     (2 forward, 4 backward)
///   + 6 x pairs x heads x (query width + value width)         a layer and sequence (scores and
///   output)
/// where both widths are head_dim but for latent attention. A frozen module computes forward only:
/// a third.
Flops ModelFlopsPerStep(const ModuleSpec& module, int64_t sequence, int64_t batch);

}  // namespace meshwright::planner
