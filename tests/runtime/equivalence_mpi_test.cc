// The same equivalence with real processes: mpirun -n 8. Every rank compares the parts of the
// gradients that it holds with its own one-rank fp64 reference.
#include <cstdio>

#include "planner/verify/verify.h"
#include "runtime/mpi_communicator.h"
#include "tests/runtime/combinations.h"
#include "tests/runtime/equivalence.h"

namespace meshwright {
namespace {

/// Largest relative error over the tensors that this rank holds any part of.
double PartialError(const testing::GlobalGradients& part, const testing::GlobalGradients& whole) {
  std::vector<double> norms;
  for (const auto& [name, r] : whole) norms.push_back(testing::Norm(r.values));
  std::sort(norms.begin(), norms.end());
  const double floor = 1e-3 * norms[norms.size() / 2];
  double error = part.empty() ? INFINITY : 0.0;
  for (const auto& [name, g] : part) {
    const auto& r = whole.at(name);
    double sum = 0.0;
    for (size_t i = 0; i < g.values.size(); ++i) {
      if (g.known[i]) sum += (g.values[i] - r.values[i]) * (g.values[i] - r.values[i]);
    }
    const double e = std::sqrt(sum) / std::max(testing::Norm(r.values), floor);
    error = std::isnan(e) ? INFINITY : std::max(error, e);
  }
  return error;
}

Status RunOne(runtime::MpiSession& session, const testing::Combination& c) {
  const planner::ModelSpec model = testing::ModelOf(c.model);
  MW_ASSIGN_OR_RETURN(const planner::Plan plan, planner::MakePlan(model, c.split));
  MW_ASSIGN_OR_RETURN(const planner::Programs programs, planner::Lower(plan));
  MW_ASSIGN_OR_RETURN(const auto reference,
                      testing::RunReference(model, plan.global_batch, planner::DType::kF64));
  runtime::DataOptions data;
  data.vocab = programs.facts.vocab;
  data.sequence = programs.facts.sequence;
  data.global_batch = programs.facts.global_batch;
  MW_ASSIGN_OR_RETURN(auto source, runtime::OpenDataSource(data));
  testing::GradientCollector collector(programs);
  runtime::RunOptions run = testing::MakeRunOptions({});
  run.on_gradients = [&](const runtime::ArenaView& view) { collector.Add(view); };
  MW_ASSIGN_OR_RETURN(const auto summary, runtime::RunOnMpi(session, programs, *source, run));
  const double error = PartialError(collector.Take(), reference.gradients);
  if (session.world().rank() == 0) {
    std::printf("%s %s: loss %.12f error %.3g\n", c.model.c_str(), planner::ShortName(plan).c_str(),
                summary.losses.front(), error);
  }
  if (!(error <= 1e-12)) return RunFailed(planner::ShortName(plan) + ": gradients differ");
  return Status::Ok();
}

int Main() {
  auto session = runtime::MpiSession::Start({});
  if (!session.ok()) {
    std::printf("%s\n", session.status().message().c_str());
    return 1;
  }
  const int world = session.value()->world().size();
  int passed = 0;
  int failed = 0;
  std::vector<testing::Combination> exact;
  for (const auto& c : testing::AllCombinations(planner::DType::kF64, testing::kSequence)) {
    if (c.split.tp * c.split.pp * c.split.dp == world) exact.push_back(c);
  }
  for (const auto& c : testing::LegalSample(exact, 14)) {
    const Status status = RunOne(*session.value(), c);
    if (!status.ok()) std::printf("FAILED %s\n", status.message().c_str());
    (status.ok() ? passed : failed) += 1;
    if (!status.ok()) break;  // the session is not usable after a failed run
  }
  if (session.value()->world().rank() == 0) std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed >= 10 ? 0 : 1;
}

}  // namespace
}  // namespace meshwright

int main() {
  return meshwright::Main();
}
