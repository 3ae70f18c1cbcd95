#include "runtime/cuda/gemm.h"

#include <utility>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gemm_tuner.h"

namespace meshwright::runtime::cuda {

Result<std::unique_ptr<GemmEngine>> GemmEngine::Create(CudaDevice& device,
                                                       const std::string& tuning_file) {
  std::unique_ptr<GemmEngine> engine(new GemmEngine(device));
  engine->tuning_file_ = tuning_file;
  MW_RETURN_IF_ERROR(CublasLtStatus(cublasLtCreate(&engine->handle_), "cublasLtCreate"));
  cudaDeviceProp properties{};
  MW_CUDA_CALL(cudaGetDeviceProperties(&properties, device.ordinal()));
  engine->machine_ = {properties.name, static_cast<int64_t>(cublasLtGetVersion()),
                      device.deterministic()};
  if (!tuning_file.empty()) {
    MW_ASSIGN_OR_RETURN(GemmChoicesFile file, LoadGemmChoices(tuning_file, engine->machine_));
    engine->choices_ = std::move(file.own);
  }
  return engine;
}

GemmEngine::~GemmEngine() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Status GemmEngine::PlanByChoice(const GemmKey& key) {
  const auto known = choices_.find(key);
  if (known == choices_.end()) return NotFound("no choice for product " + ToString(key));
  Plan plan;
  MW_ASSIGN_OR_RETURN(plan.problem, GemmProblem::Create(key));
  plan.algorithm = AlgorithmOf(known->second);
  const Result<int64_t> needed = plan.problem->Check(handle_, plan.algorithm);
  if (!needed.ok() || *needed > device_.workspace_cap()) {
    return NotFound("the choice for product " + ToString(key) + " cannot run here");
  }
  plan.workspace_bytes = *needed;
  plans_.insert_or_assign(key, std::move(plan));
  return Status::Ok();
}

Status GemmEngine::PlanByHeuristics(const GemmKey& key) {
  Plan plan;
  MW_ASSIGN_OR_RETURN(plan.problem, GemmProblem::Create(key));
  MW_ASSIGN_OR_RETURN(
      const auto proposals,
      plan.problem->Candidates(handle_, device_.workspace_cap(), device_.deterministic(), 1));
  plan.algorithm = proposals.front().algo;
  plan.workspace_bytes = static_cast<int64_t>(proposals.front().workspaceSize);
  plans_.insert_or_assign(key, std::move(plan));
  return Status::Ok();
}

/// First all products alone, while the GPU is cool, then those of close finalists under load.
Status GemmEngine::Tune(std::span<const GemmKey> keys) {
  if (keys.empty()) return Status::Ok();
  GemmTunerOptions options;
  options.ordinal = device_.ordinal();
  options.workspace_bytes = device_.workspace_cap();
  options.deterministic = device_.deterministic();
  MW_ASSIGN_OR_RETURN(const auto tuner, GemmTuner::Create(options));
  std::vector<std::unique_ptr<GemmProblem>> problems;
  std::vector<std::vector<GemmChoice>> finalists;
  for (const GemmKey& key : keys) {
    MW_ASSIGN_OR_RETURN(auto problem, GemmProblem::Create(key));
    MW_ASSIGN_OR_RETURN(auto best, tuner->Finalists(handle_, *problem));
    problems.push_back(std::move(problem));
    finalists.push_back(std::move(best));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    MW_ASSIGN_OR_RETURN(const GemmChoice choice,
                        tuner->FastestSustained(handle_, *problems[i], finalists[i]));
    choices_[keys[i]] = choice;
    unsaved_[keys[i]] = choice;
    MW_RETURN_IF_ERROR(PlanByChoice(keys[i]));
  }
  return Save();
}

Status GemmEngine::Save() {
  if (tuning_file_.empty() || unsaved_.empty()) return Status::Ok();
  MW_RETURN_IF_ERROR(SaveGemmChoices(tuning_file_, machine_, unsaved_));
  unsaved_.clear();
  return Status::Ok();
}

Status GemmEngine::Prepare(std::span<const GemmKey> keys) {
  std::vector<GemmKey> unknown;
  for (const GemmKey& key : keys) {
    if (plans_.contains(key)) continue;
    const Status known = PlanByChoice(key);
    if (known.ok()) continue;
    if (known.code() != StatusCode::kNotFound) return known;
    if (tune_) {
      unknown.push_back(key);
    } else {
      MW_RETURN_IF_ERROR(PlanByHeuristics(key));
    }
  }
  return Tune(unknown);
}

Status GemmEngine::Prepare(const OpCall& call) {
  MW_ASSIGN_OR_RETURN(const GemmKey key, KeyOf(call));
  return Prepare(std::span(&key, 1));
}

Status GemmEngine::Run(const GemmKey& key, const GemmOperands& operands, planner::StreamId stream) {
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    const Status known = PlanByChoice(key);
    if (known.code() == StatusCode::kNotFound) {
      MW_RETURN_IF_ERROR(PlanByHeuristics(key));
    } else {
      MW_RETURN_IF_ERROR(known);
    }
    at = plans_.find(key);
  }
  const Plan& plan = at->second;
  std::byte* workspace = nullptr;
  if (plan.workspace_bytes > 0) {
    MW_ASSIGN_OR_RETURN(workspace, device_.workspace(stream, plan.workspace_bytes));
  }
  const cublasStatus_t status = plan.problem->Run(handle_, plan.algorithm, operands, workspace,
                                                  plan.workspace_bytes, device_.stream(stream));
  if (status == CUBLAS_STATUS_SUCCESS) return Status::Ok();
  return CublasLtStatus(status, "cublasLtMatmul").WithContext("product " + ToString(key));
}

Status GemmEngine::ImportChoices(const std::string& text) {
  MW_ASSIGN_OR_RETURN(GemmChoicesFile file, ParseGemmChoices(text, "imported choices", machine_));
  if (!file.others.empty()) {
    return InvalidInput(
        "imported GEMM choices are of another device, cuBLASLt version or "
        "determinism than this rank's (" +
        machine_.device + ", " + std::to_string(machine_.library) + "): " + file.others.front() +
        "; run all ranks on the same devices and libraries");
  }
  for (auto& [key, choice] : file.own) {
    const auto known = choices_.find(key);
    const bool same = known != choices_.end() && known->second.algorithm == choice.algorithm;
    choices_[key] = choice;
    if (!same) plans_.erase(key);
  }
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
