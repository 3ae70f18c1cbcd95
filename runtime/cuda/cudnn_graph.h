// The part of cuDNN's backend C API that fused attention needs: descriptors that own themselves and
// a builder of operation graphs. Building and asking the heuristics work without a GPU.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <string>
#include <vector>

#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Ok for CUDNN_STATUS_SUCCESS, else "what: CUDNN_STATUS_... (number): cuDNN's last message".
Status CudnnStatus(cudnnStatus_t status, const std::string& what);

/// A backend descriptor; destroyed with the object.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  static Result<CudnnDescriptor> Create(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;

  Status Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
             const void* values);
  Status SetDescriptor(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  Status SetInt(cudnnBackendAttributeName_t name, int64_t value);
  Status SetBool(cudnnBackendAttributeName_t name, bool value);
  Status SetDataType(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  Status Finalize();
  Result<int64_t> GetInt(cudnnBackendAttributeName_t name) const;
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// Where a graph gets the facts of the device from: a handle on a machine with a GPU, else a
/// description in cuDNN's JSON form.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* properties = nullptr;  ///< CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR

  static Result<CudnnDescriptor> PropertiesFromJson(const std::string& json);
  static Result<std::string> JsonOf(cudnnHandle_t handle);
};

/// A four-dimensional tensor [batch, head, row, column] of a graph.
struct CudnnTensor {
  int64_t dims[4] = {1, 1, 1, 1};
  int64_t strides[4] = {1, 1, 1, 1};  ///< elements
  cudnnDataType_t type = CUDNN_DATA_FLOAT;

  /// The same memory with rows and columns exchanged.
  CudnnTensor Transposed() const;
};

/// Adds operations to a graph. The first error sticks; Finish returns it. Tensors are named by
/// their unique id: those of callers are real and get memory in the variant pack, results are
/// virtual unless `result` says otherwise.
class CudnnGraphBuilder {
 public:
  using Id = int64_t;
  static constexpr Id kNew = -1;  ///< a new virtual tensor

  /// A tensor with memory on the device, 16-byte aligned.
  Id Real(Id id, const CudnnTensor& tensor);
  /// A host scalar of the variant pack.
  Id Scalar(Id id, cudnnDataType_t type);
  Id Virtual(const CudnnTensor& tensor);

  /// x op b in fp32 (b: kNew for one-operand modes). The result is an fp32 tensor of the shape of
  /// x; `result` puts it into an existing tensor instead.
  Id Pointwise(cudnnPointwiseMode_t mode, Id x, Id b = kNew, Id result = kNew);
  Id Compare(cudnnPointwiseMode_t mode, Id x, Id b);  ///< boolean of the shape of x
  Id Index(Id like, int64_t axis);                    ///< int32 position along an axis
  Id Shift(Id index, Id distance);                    ///< fp32 index + distance
  Id Select(Id x, Id otherwise, Id mask);             ///< mask ? x : otherwise
  void MatrixProduct(Id a, Id b, Id result);
  void Reduce(cudnnReduceTensorOp_t op, Id x, Id result);
  void Reshape(Id x, Id result);

  /// The finished operation graph. The builder must outlive it.
  Result<CudnnDescriptor> Finish(const CudnnTarget& target);

 private:
  struct Entry {
    Id id = 0;
    CudnnTensor tensor;
    CudnnDescriptor descriptor;
  };
  enum class Storage : uint8_t { kReal, kVirtual, kScalar };
  struct PointwiseSpec {
    cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;
    Id x = kNew, b = kNew, mask = kNew, result = kNew;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t axis = -1;  ///< -1: not set
  };
  Id AddPointwise(const PointwiseSpec& spec);

  Id Add(Id id, const CudnnTensor& tensor, Storage storage);
  const Entry* Find(Id id);
  void Operation(CudnnDescriptor operation);
  bool Check(const Status& status);  ///< keeps the first error
  bool Bind(CudnnDescriptor& operation, cudnnBackendAttributeName_t name, Id id);

  Status status_;
  Id next_ = 1000;  ///< ids of virtual tensors lie above those of callers
  std::vector<Entry> tensors_;
  std::vector<CudnnDescriptor> details_;  ///< descriptors that operations refer to
  std::vector<CudnnDescriptor> operations_;
};

/// Engine configurations that the heuristics propose for a graph, best first; at most `limit`.
/// kUnsupported when there is none.
Result<std::vector<CudnnDescriptor>> CudnnEngines(const CudnnDescriptor& graph,
                                                  const CudnnTarget& target, int64_t limit);

}  // namespace meshwright::runtime::cuda
