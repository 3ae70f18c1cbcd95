// One split on one machine: lowered, proven, simulated; and whether it fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "cost_models/device_profile.h"
#include "planner/ir/plan.h"
#include "planner/ir/program.h"
#include "planner/predict/predict.h"
#include "topologies/cluster.h"
#include "topologies/status.h"

namespace meshwright::tools {

/// Relative deviation of predicted from measured steps of our own runtime on GPUs: root mean square
/// over cost_models/validation/own_h200.csv, 80 runs; a test keeps it so.
constexpr double kOwnStepDeviation = 0.0281;

struct Evaluation {
  planner::Programs programs;
  planner::SimulatedStep simulated;
};

/// Lower, Verify (without memory limits), Simulate.
Result<Evaluation> Evaluate(const planner::Plan& plan, const topologies::Cluster& cluster,
                            const cost::CostModel& costs, const planner::PredictOptions& options);

/// LowerForPrices, MakePrices, Predict: of a plan that need not be proven.
Result<planner::SimulatedStep> Simulate(const planner::Plan& plan,
                                        const topologies::Cluster& cluster,
                                        const cost::CostModel& costs,
                                        const planner::PredictOptions& options);

/// Lowers and verifies a plan that PredictFromFew has predicted and, beside that, simulates all of
/// its micro-batches where that takes less than about a third of a second. Returns that prediction, else the
/// plan's own.
Result<planner::Prediction> Confirm(const planner::Plan& plan, const topologies::Cluster& cluster,
                                    const cost::CostModel& costs, int threads);

/// Puts the plan's tensor groups on the widest links of the cluster, then cp, ep, dp, pp; notes the
/// cluster in the plan, and warns of tensor groups that cross the network, of a pipeline that the
/// micro-batches do not fill and of ZeRO that cuts nothing.
Status PlaceOn(const topologies::Cluster& cluster, planner::Plan* plan);

/// Bytes that a rank of each stage may use: of its smallest device, by cluster and profile.
std::vector<int64_t> DeviceBytes(const planner::Plan& plan, const topologies::Cluster& cluster,
                                 const cost::DeviceProfile& profile);

/// A sentence for every stage that needs more than its device has.
std::vector<std::string> FitProblems(const planner::Plan& plan,
                                     const std::vector<planner::MemoryBreakdown>& memory,
                                     const std::vector<int64_t>& device_bytes);

}  // namespace meshwright::tools
