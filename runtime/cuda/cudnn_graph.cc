#include "runtime/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <utility>

namespace meshwright::runtime::cuda {

Status CudnnStatus(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
  std::array<char, 1024> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size() - 1);
  std::string message = what + ": " + cudnnGetErrorString(status) + " (" +
                        std::to_string(static_cast<int>(status)) + ")";
  if (detail[0] != '\0') message += ": " + std::string(detail.data());
  const bool unsupported = CUDNN_STATUS_CATEGORY(static_cast<int>(status)) == 3000;
  return unsupported ? Unsupported(std::move(message)) : RunFailed(std::move(message));
}

Result<CudnnDescriptor> CudnnDescriptor::Create(cudnnBackendDescriptorType_t type) {
  CudnnDescriptor created;
  MW_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendCreateDescriptor(type, &created.descriptor_),
      "cudnnBackendCreateDescriptor of type " + std::to_string(static_cast<int>(type))));
  return created;
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Status CudnnDescriptor::Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            int64_t count, const void* values) {
  const cudnnStatus_t status = cudnnBackendSetAttribute(descriptor_, name, type, count, values);
  if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();  // no text to build on the hot path
  return CudnnStatus(
      status, "cudnnBackendSetAttribute of attribute " + std::to_string(static_cast<int>(name)));
}

Status CudnnDescriptor::SetDescriptor(cudnnBackendAttributeName_t name,
                                      const CudnnDescriptor& value) {
  return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
}
Status CudnnDescriptor::SetInt(cudnnBackendAttributeName_t name, int64_t value) {
  return Set(name, CUDNN_TYPE_INT64, 1, &value);
}
Status CudnnDescriptor::SetBool(cudnnBackendAttributeName_t name, bool value) {
  return Set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}
Status CudnnDescriptor::SetDataType(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return Set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

Status CudnnDescriptor::Finalize() {
  const cudnnStatus_t status = cudnnBackendFinalize(descriptor_);
  if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
  return CudnnStatus(status, "cudnnBackendFinalize");
}

Result<int64_t> CudnnDescriptor::GetInt(cudnnBackendAttributeName_t name) const {
  int64_t value = 0;
  int64_t count = 0;
  MW_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &count, &value),
      "cudnnBackendGetAttribute of attribute " + std::to_string(static_cast<int>(name))));
  return value;
}

Result<CudnnDescriptor> CudnnTarget::PropertiesFromJson(const std::string& json) {
  MW_ASSIGN_OR_RETURN(CudnnDescriptor properties,
                      CudnnDescriptor::Create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  MW_RETURN_IF_ERROR(properties.Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                    static_cast<int64_t>(json.size()), json.data()));
  MW_RETURN_IF_ERROR(properties.Finalize());
  return properties;
}

Result<std::string> CudnnTarget::JsonOf(cudnnHandle_t handle) {
  MW_ASSIGN_OR_RETURN(CudnnDescriptor properties,
                      CudnnDescriptor::Create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  MW_RETURN_IF_ERROR(properties.Set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
  MW_RETURN_IF_ERROR(properties.Finalize());
  int64_t size = 0;
  const char* what = "cudnnBackendGetAttribute of the device properties";
  MW_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(properties.get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                               CUDNN_TYPE_CHAR, 0, &size, nullptr),
      what));
  std::string json(static_cast<size_t>(size), '\0');
  MW_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(properties.get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                               CUDNN_TYPE_CHAR, size, &size, json.data()),
      what));
  return json;
}

CudnnTensor CudnnTensor::Transposed() const {
  CudnnTensor t = *this;
  std::swap(t.dims[2], t.dims[3]);
  std::swap(t.strides[2], t.strides[3]);
  return t;
}

bool CudnnGraphBuilder::Check(const Status& status) {
  if (status_.ok()) status_ = status;
  return status_.ok();
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Add(Id id, const CudnnTensor& tensor, Storage storage) {
  if (!status_.ok()) return id;
  auto created = CudnnDescriptor::Create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  if (!created.ok()) {
    Check(created.status());
    return id;
  }
  CudnnDescriptor& d = *created;
  const bool by_value = storage == Storage::kScalar;
  const bool ok = Check(d.SetDataType(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor.type)) &&
                  Check(d.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor.dims)) &&
                  Check(d.Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor.strides)) &&
                  Check(d.SetInt(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)) &&
                  Check(d.SetInt(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16)) &&
                  Check(d.SetBool(CUDNN_ATTR_TENSOR_IS_VIRTUAL, storage == Storage::kVirtual)) &&
                  Check(d.SetBool(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value)) && Check(d.Finalize());
  if (ok) tensors_.push_back({id, tensor, std::move(d)});
  return id;
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Real(Id id, const CudnnTensor& tensor) {
  return Add(id, tensor, Storage::kReal);
}
CudnnGraphBuilder::Id CudnnGraphBuilder::Scalar(Id id, cudnnDataType_t type) {
  CudnnTensor tensor;
  tensor.type = type;
  return Add(id, tensor, Storage::kScalar);
}
CudnnGraphBuilder::Id CudnnGraphBuilder::Virtual(const CudnnTensor& tensor) {
  return Add(next_++, tensor, Storage::kVirtual);
}

const CudnnGraphBuilder::Entry* CudnnGraphBuilder::Find(Id id) {
  const auto at = std::find_if(tensors_.begin(), tensors_.end(),
                               [id](const Entry& entry) { return entry.id == id; });
  if (at == tensors_.end()) {
    MW_CHECK(!status_.ok());  // only after an error may a tensor be missing
    return nullptr;
  }
  return &*at;
}

bool CudnnGraphBuilder::Bind(CudnnDescriptor& operation, cudnnBackendAttributeName_t name, Id id) {
  const Entry* entry = Find(id);
  return entry != nullptr && Check(operation.SetDescriptor(name, entry->descriptor));
}

void CudnnGraphBuilder::Operation(CudnnDescriptor operation) {
  if (Check(operation.Finalize())) operations_.push_back(std::move(operation));
}

CudnnGraphBuilder::Id CudnnGraphBuilder::AddPointwise(const PointwiseSpec& spec) {
  if (!status_.ok()) return spec.result;
  Id result = spec.result;
  if (result == kNew) {
    CudnnTensor like = Find(spec.x)->tensor;
    like.type = spec.type;
    result = Virtual(like);
  }
  auto pointwise = CudnnDescriptor::Create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  auto operation = CudnnDescriptor::Create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  if (!Check(pointwise.status()) || !Check(operation.status())) return result;
  const bool ok =
      Check(pointwise->Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &spec.mode)) &&
      Check(pointwise->SetDataType(CUDNN_ATTR_POINTWISE_MATH_PREC, spec.math)) &&
      (spec.axis < 0 || Check(pointwise->SetInt(CUDNN_ATTR_POINTWISE_AXIS, spec.axis))) &&
      Check(pointwise->Finalize()) &&
      Check(operation->SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *pointwise)) &&
      Bind(*operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, spec.x) &&
      (spec.b == kNew || Bind(*operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, spec.b)) &&
      (spec.mask == kNew || Bind(*operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, spec.mask)) &&
      Bind(*operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
  if (!ok) return result;
  details_.push_back(std::move(*pointwise));
  Operation(std::move(*operation));
  return result;
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Pointwise(cudnnPointwiseMode_t mode, Id x, Id b,
                                                   Id result) {
  PointwiseSpec spec;
  spec.mode = mode, spec.x = x, spec.b = b, spec.result = result;
  return AddPointwise(spec);
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Compare(cudnnPointwiseMode_t mode, Id x, Id b) {
  PointwiseSpec spec;
  spec.mode = mode, spec.x = x, spec.b = b;
  spec.math = spec.type = CUDNN_DATA_BOOLEAN;
  return AddPointwise(spec);
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Index(Id like, int64_t axis) {
  PointwiseSpec spec;
  spec.mode = CUDNN_POINTWISE_GEN_INDEX, spec.x = like, spec.axis = axis;
  spec.math = spec.type = CUDNN_DATA_INT32;
  return AddPointwise(spec);
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Shift(Id index, Id distance) {
  PointwiseSpec spec;
  spec.mode = CUDNN_POINTWISE_ADD, spec.x = index, spec.b = distance, spec.axis = 3;
  return AddPointwise(spec);
}

CudnnGraphBuilder::Id CudnnGraphBuilder::Select(Id x, Id otherwise, Id mask) {
  PointwiseSpec spec;
  spec.mode = CUDNN_POINTWISE_BINARY_SELECT, spec.x = x, spec.b = otherwise, spec.mask = mask;
  return AddPointwise(spec);
}

void CudnnGraphBuilder::MatrixProduct(Id a, Id b, Id result) {
  if (!status_.ok()) return;
  auto product = CudnnDescriptor::Create(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  auto operation = CudnnDescriptor::Create(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  if (!Check(product.status()) || !Check(operation.status())) return;
  const bool ok = Check(product->SetDataType(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT)) &&
                  Check(product->Finalize()) &&
                  Check(operation->SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_DESC, *product)) &&
                  Bind(*operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a) &&
                  Bind(*operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b) &&
                  Bind(*operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
  if (!ok) return;
  details_.push_back(std::move(*product));
  Operation(std::move(*operation));
}

void CudnnGraphBuilder::Reduce(cudnnReduceTensorOp_t op, Id x, Id result) {
  if (!status_.ok()) return;
  auto reduction = CudnnDescriptor::Create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  auto operation = CudnnDescriptor::Create(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  if (!Check(reduction.status()) || !Check(operation.status())) return;
  const bool ok =
      Check(reduction->SetDataType(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)) &&
      Check(reduction->Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                           &op)) &&
      Check(reduction->Finalize()) &&
      Check(operation->SetDescriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC, *reduction)) &&
      Bind(*operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x) &&
      Bind(*operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
  if (!ok) return;
  details_.push_back(std::move(*reduction));
  Operation(std::move(*operation));
}

void CudnnGraphBuilder::Reshape(Id x, Id result) {
  if (!status_.ok()) return;
  auto operation = CudnnDescriptor::Create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  if (!Check(operation.status())) return;
  if (Bind(*operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x) &&
      Bind(*operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result)) {
    Operation(std::move(*operation));
  }
}

Result<CudnnDescriptor> CudnnGraphBuilder::Finish(const CudnnTarget& target) {
  MW_RETURN_IF_ERROR(status_);
  MW_ASSIGN_OR_RETURN(CudnnDescriptor graph,
                      CudnnDescriptor::Create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  MW_RETURN_IF_ERROR(graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                               static_cast<int64_t>(operations.size()), operations.data()));
  if (target.handle != nullptr) {
    MW_RETURN_IF_ERROR(
        graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle));
  }
  MW_RETURN_IF_ERROR(graph.Finalize());
  return graph;
}

Result<std::vector<CudnnDescriptor>> CudnnEngines(const CudnnDescriptor& graph,
                                                  const CudnnTarget& target, int64_t limit) {
  MW_ASSIGN_OR_RETURN(CudnnDescriptor heuristics,
                      CudnnDescriptor::Create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  MW_RETURN_IF_ERROR(heuristics.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
  MW_RETURN_IF_ERROR(heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
  if (target.properties != nullptr) {
    MW_RETURN_IF_ERROR(
        heuristics.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties));
  }
  MW_RETURN_IF_ERROR(heuristics.Finalize().WithContext("engine heuristics"));

  std::vector<CudnnDescriptor> engines;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < limit; ++i) {
    MW_ASSIGN_OR_RETURN(CudnnDescriptor engine,
                        CudnnDescriptor::Create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(engine.get());
    engines.push_back(std::move(engine));
  }
  int64_t found = 0;
  MW_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, limit, &found, raw.data()),
      "cudnnBackendGetAttribute of the heuristics' results"));
  engines.resize(static_cast<size_t>(std::clamp<int64_t>(found, 0, limit)));
  if (engines.empty()) return Unsupported("cuDNN knows no engine for this graph");
  return engines;
}

}  // namespace meshwright::runtime::cuda
