#include "runtime/cuda/attention.h"

#include <cublas_v2.h>
#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/cuda/attention_fp32.h"
#include "runtime/cuda/attention_graph.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using planner::DType;
using planner::OpKind;
using planner::TensorView;

/// Engines that are tried in the order of the heuristics.
constexpr int64_t kEngines = 8;

const TensorView& View(const OpCall& call, const char* name) {
  const TensorView* view = planner::Find(call.block, call.op, name);
  MW_CHECK(view != nullptr);
  return *view;
}
std::byte* Address(const OpCall& call, const char* name) {
  return call.Address(static_cast<size_t>(planner::OperandIndex(call.op.kind, name)));
}

AttentionShape ShapeOf(const OpCall& call) {
  AttentionShape shape = planner::AttentionShapeOf(call.op.attributes);
  if (shape.window >= shape.sequence) shape.window = 0;  // hides nothing
  return shape;
}

/// Dtypes and sizes of the operands; the dtype of the computation.
Result<DType> CheckOperands(const OpCall& call) {
  const AttentionShape shape = ShapeOf(call);
  const DType dtype = View(call, "qkv").dtype;
  if (dtype != DType::kBf16 && dtype != DType::kF32) {
    return Unsupported("qkv is " + planner::ToString(dtype) +
                       ": GPU ranks compute in bf16 or fp32, choose one of these dtypes");
  }
  MW_CHECK(View(call, "lse").dtype == DType::kF32);
  MW_CHECK(View(call, "o").dtype == dtype);
  const int64_t tokens = shape.sequence * shape.batch;
  MW_CHECK(View(call, "qkv").elements() == tokens * shape.packed());
  MW_CHECK(View(call, "o").elements() == tokens * shape.heads * shape.head_dim);
  MW_CHECK(View(call, "lse").elements() == tokens * shape.heads);
  return dtype;
}

Status TooSmall(const OpCall& call, int64_t needed) {
  const TensorView& workspace = View(call, "workspace");
  return Infeasible("workspace " + workspace.name + " has " + std::to_string(workspace.bytes()) +
                    " bytes, attention of this shape needs " + std::to_string(needed) +
                    "; give the plan a larger attention workspace or a smaller micro-batch");
}

/// A cuDNN execution plan and what it was made from, which it may refer to.
struct Plan {
  AttentionGraphSpec spec;
  CudnnGraphBuilder builder;
  CudnnDescriptor graph;
  CudnnDescriptor engine;
  CudnnDescriptor plan;
  int64_t plan_bytes = 0;
  AttentionScratch scratch;
};

/// Host scalars of the graphs. Addresses go into variant packs, values are read at execution.
struct Scalars {
  float scale = 1.0F;
  float one = 1.0F;
  float minus_infinity = -std::numeric_limits<float>::infinity();
  float window = 0.0F;
};

/// Ids and addresses of one execution.
struct VariantPack {
  std::array<int64_t, 16> ids{};
  std::array<void*, 16> addresses{};
  int64_t count = 0;

  void Add(AttentionTensor tensor, void* address) {
    MW_CHECK(static_cast<size_t>(count) < ids.size());
    ids[static_cast<size_t>(count)] = IdOf(tensor);
    addresses[static_cast<size_t>(count)] = address;
    ++count;
  }
  Result<CudnnDescriptor> Finish(void* workspace) {
    MW_ASSIGN_OR_RETURN(CudnnDescriptor pack,
                        CudnnDescriptor::Create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    MW_RETURN_IF_ERROR(
        pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data()));
    MW_RETURN_IF_ERROR(pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                                addresses.data()));
    MW_RETURN_IF_ERROR(
        pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    MW_RETURN_IF_ERROR(pack.Finalize());
    return pack;
  }
};

/// Queries, keys and values of one sample inside packed rows of bf16.
struct PackedParts {
  PackedParts(std::byte* rows, const AttentionShape& s, int64_t sample) {
    query = rows + 2 * sample * s.packed();
    key = query + 2 * s.heads * s.head_dim;
    value = key + 2 * s.kv_heads * s.head_dim;
  }
  std::byte* query;
  std::byte* key;
  std::byte* value;
};

}  // namespace

struct AttentionEngine::Impl {
  explicit Impl(CudaDevice& d) : device(d) {}
  ~Impl() {
    plans.clear();  // before the handle that made them
    if (cudnn != nullptr) cudnnDestroy(cudnn);
    if (cublas != nullptr) cublasDestroy(cublas);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  AttentionGraphSpec SpecOf(const OpCall& call) const;
  const Plan* Find(const AttentionGraphSpec& spec) const;
  Status Build(const OpCall& call, const AttentionGraphSpec& spec);
  Status ExecuteSample(const OpCall& call, const Plan& plan, int64_t first_sample);
  Status RunBf16(const OpCall& call);
  Status RunFp32(const OpCall& call);
  Status OpenCublas();

  CudaDevice& device;
  cudnnHandle_t cudnn = nullptr;
  cublasHandle_t cublas = nullptr;  ///< made for the first fp32 op
  std::vector<std::unique_ptr<Plan>> plans;
};

AttentionGraphSpec AttentionEngine::Impl::SpecOf(const OpCall& call) const {
  AttentionGraphSpec spec;
  spec.shape = ShapeOf(call);
  spec.backward = call.op.kind == OpKind::kAttentionGrad;
  // The forward pass is the same from run to run anyway.
  spec.deterministic = spec.backward && device.deterministic();
  spec.samples = spec.deterministic ? 1 : spec.shape.batch;
  return spec;
}

const Plan* AttentionEngine::Impl::Find(const AttentionGraphSpec& spec) const {
  for (const auto& plan : plans) {
    if (plan->spec == spec) return plan.get();
  }
  return nullptr;
}

Status AttentionEngine::Impl::Build(const OpCall& call, const AttentionGraphSpec& spec) {
  auto plan = std::make_unique<Plan>();
  plan->spec = spec;
  CudnnTarget target;
  target.handle = cudnn;
  MW_ASSIGN_OR_RETURN(plan->graph, BuildAttentionGraph(plan->spec, target, &plan->builder));
  MW_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> engines,
                      CudnnEngines(plan->graph, target, kEngines));
  const int64_t allowed = View(call, "workspace").bytes();
  int64_t smallest = std::numeric_limits<int64_t>::max();
  Status refusal;  // of the last engine that fits
  for (CudnnDescriptor& engine : engines) {
    MW_ASSIGN_OR_RETURN(CudnnDescriptor candidate,
                        CudnnDescriptor::Create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    MW_RETURN_IF_ERROR(
        candidate.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn));
    MW_RETURN_IF_ERROR(candidate.SetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine));
    refusal = candidate.Finalize();
    if (!refusal.ok()) continue;
    MW_ASSIGN_OR_RETURN(plan->plan_bytes,
                        candidate.GetInt(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
    plan->scratch = LayOutScratch(spec, plan->plan_bytes);
    smallest = std::min(smallest, plan->scratch.total);
    if (plan->scratch.total > allowed) continue;
    plan->engine = std::move(engine);
    plan->plan = std::move(candidate);
    plans.push_back(std::move(plan));
    return Status::Ok();
  }
  if (smallest != std::numeric_limits<int64_t>::max()) return TooSmall(call, smallest);
  return refusal.WithContext("no engine of cuDNN runs this attention");
}

Status AttentionEngine::Impl::ExecuteSample(const OpCall& call, const Plan& plan,
                                            int64_t first_sample) {
  const AttentionGraphSpec& spec = plan.spec;
  const AttentionShape& s = spec.shape;
  Scalars scalars;
  scalars.scale = static_cast<float>(s.scale);
  scalars.window = static_cast<float>(s.window);

  VariantPack pack;
  const PackedParts in(Address(call, "qkv"), s, first_sample);
  const int64_t o_offset = 2 * first_sample * s.heads * s.head_dim;
  std::byte* workspace = Address(call, "workspace");
  pack.Add(AttentionTensor::kQuery, in.query);
  pack.Add(AttentionTensor::kKey, in.key);
  pack.Add(AttentionTensor::kValue, in.value);
  pack.Add(AttentionTensor::kOutput, Address(call, "o") + o_offset);
  pack.Add(AttentionTensor::kLogSumExp,
           Address(call, "lse") + 4 * first_sample * s.heads * s.sequence);
  pack.Add(AttentionTensor::kScale, &scalars.scale);
  if (s.causal || s.window > 0) {
    pack.Add(AttentionTensor::kMinusInfinity, &scalars.minus_infinity);
  }
  if (s.window > 0) pack.Add(AttentionTensor::kWindow, &scalars.window);
  if (spec.backward) {
    const PackedParts out(Address(call, "dqkv"), s, first_sample);
    pack.Add(AttentionTensor::kOutputGrad, Address(call, "do") + o_offset);
    pack.Add(AttentionTensor::kQueryGrad, out.query);
    pack.Add(AttentionTensor::kKeyGrad, out.key);
    pack.Add(AttentionTensor::kValueGrad, out.value);
    pack.Add(AttentionTensor::kOne, &scalars.one);
    pack.Add(AttentionTensor::kRowSum, workspace + plan.scratch.row_sum);
    if (!spec.deterministic) {
      pack.Add(AttentionTensor::kQueryGradSum, workspace + plan.scratch.query_grad_sum);
    }
  }
  MW_ASSIGN_OR_RETURN(CudnnDescriptor finished, pack.Finish(workspace + plan.scratch.plan));
  const cudnnStatus_t status = cudnnBackendExecute(cudnn, plan.plan.get(), finished.get());
  if (status != CUDNN_STATUS_SUCCESS) return CudnnStatus(status, "cudnnBackendExecute");
  return Status::Ok();
}

Status AttentionEngine::Impl::RunBf16(const OpCall& call) {
  const AttentionGraphSpec spec = SpecOf(call);
  const Plan* plan = Find(spec);
  if (plan == nullptr) {
    MW_RETURN_IF_ERROR(Build(call, spec));
    plan = plans.back().get();
  }
  if (plan->scratch.total > View(call, "workspace").bytes()) {
    return TooSmall(call, plan->scratch.total);
  }
  const cudaStream_t stream = device.stream(call.op.stream);
  const cudnnStatus_t status = cudnnSetStream(cudnn, stream);
  if (status != CUDNN_STATUS_SUCCESS) return CudnnStatus(status, "cudnnSetStream");
  if (spec.backward && !spec.deterministic && cudnnGetVersion() < 90600) {
    // Later versions start the sums of dQ at zero themselves.
    const int64_t elements =
        spec.shape.batch * spec.shape.heads * spec.shape.sequence * spec.shape.head_dim;
    MW_CUDA_CALL(cudaMemsetAsync(Address(call, "workspace") + plan->scratch.query_grad_sum, 0,
                                 static_cast<size_t>(elements) * sizeof(float), stream));
  }
  for (int64_t sample = 0; sample < spec.shape.batch; sample += spec.samples) {
    MW_RETURN_IF_ERROR(ExecuteSample(call, *plan, sample));
  }
  return Status::Ok();
}

Status AttentionEngine::Impl::OpenCublas() {
  if (cublas != nullptr) return Status::Ok();
  return CublasStatus(cublasCreate(&cublas), "cublasCreate");
}

Status AttentionEngine::Impl::RunFp32(const OpCall& call) {
  MW_RETURN_IF_ERROR(OpenCublas());
  const bool backward = call.op.kind == OpKind::kAttentionGrad;
  AttentionFp32Operands x;
  x.shape = ShapeOf(call);
  const int64_t needed =
      planner::AttentionWorkspaceBytes(x.shape, DType::kF32, backward, device.deterministic());
  if (needed > View(call, "workspace").bytes()) return TooSmall(call, needed);
  x.handle = cublas;
  x.stream = device.stream(call.op.stream);
  x.qkv = reinterpret_cast<const float*>(Address(call, "qkv"));
  x.o = reinterpret_cast<float*>(Address(call, "o"));
  x.lse = reinterpret_cast<float*>(Address(call, "lse"));
  x.workspace = reinterpret_cast<float*>(Address(call, "workspace"));
  if (backward) {
    x.d_o = reinterpret_cast<const float*>(Address(call, "do"));
    x.dqkv = reinterpret_cast<float*>(Address(call, "dqkv"));
  }
  // Setting the stream takes the workspace away, so both are set, in this order.
  const int64_t scratch = std::min<int64_t>(device.workspace_cap(), int64_t{32} << 20);
  MW_ASSIGN_OR_RETURN(std::byte * memory, device.workspace(call.op.stream, scratch));
  MW_RETURN_IF_ERROR(CublasStatus(cublasSetStream(cublas, x.stream), "cublasSetStream"));
  MW_RETURN_IF_ERROR(CublasStatus(cublasSetWorkspace(cublas, memory, static_cast<size_t>(scratch)),
                                  "cublasSetWorkspace"));
  return backward ? AttentionFp32Grad(x) : AttentionFp32(x);
}

AttentionEngine::AttentionEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionEngine::~AttentionEngine() = default;

Result<std::unique_ptr<AttentionEngine>> AttentionEngine::Create(CudaDevice& device) {
  auto impl = std::make_unique<Impl>(device);
  MW_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&impl->cudnn), "cudnnCreate"));
  return std::unique_ptr<AttentionEngine>(new AttentionEngine(std::move(impl)));
}

Status AttentionEngine::Prepare(const OpCall& call) {
  const auto prepare = [&]() -> Status {
    MW_ASSIGN_OR_RETURN(const DType dtype, CheckOperands(call));
    if (dtype == DType::kF32) {
      const int64_t needed = planner::AttentionWorkspaceBytes(
          ShapeOf(call), dtype, call.op.kind == OpKind::kAttentionGrad,
          impl_->device.deterministic());
      if (needed > View(call, "workspace").bytes()) return TooSmall(call, needed);
      return impl_->OpenCublas();
    }
    const AttentionGraphSpec spec = impl_->SpecOf(call);
    const Plan* plan = impl_->Find(spec);
    if (plan == nullptr) return impl_->Build(call, spec);
    const bool fits = plan->scratch.total <= View(call, "workspace").bytes();
    return fits ? Status::Ok() : TooSmall(call, plan->scratch.total);
  };
  return prepare().WithContext(Where(call));
}

Status AttentionEngine::Run(const OpCall& call) {
  const auto run = [&]() -> Status {
    MW_ASSIGN_OR_RETURN(const DType dtype, CheckOperands(call));
    return dtype == DType::kF32 ? impl_->RunFp32(call) : impl_->RunBf16(call);
  };
  const Status status = run();
  return status.ok() ? status : status.WithContext(Where(call));
}

Result<int64_t> AttentionEngine::WorkspaceBytes(const OpCall& call) const {
  MW_ASSIGN_OR_RETURN(const DType dtype, CheckOperands(call));
  if (dtype == DType::kF32) {
    return planner::AttentionWorkspaceBytes(ShapeOf(call), dtype,
                                            call.op.kind == OpKind::kAttentionGrad,
                                            impl_->device.deterministic());
  }
  const Plan* plan = impl_->Find(impl_->SpecOf(call));
  if (plan == nullptr) return NotFound(Where(call) + ": not prepared");
  return plan->scratch.total;
}

Result<std::string> AttentionEngine::DeviceJson() const {
  return CudnnTarget::JsonOf(impl_->cudnn);
}

Status Attention(const OpCall& call) {
  return DeviceOf(call).attention().Run(call);
}
Status AttentionGrad(const OpCall& call) {
  return DeviceOf(call).attention().Run(call);
}

}  // namespace meshwright::runtime::cuda
