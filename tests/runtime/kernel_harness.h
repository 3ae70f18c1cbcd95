// Runs single kernels on named tensors: makes the block, op and arena around them. Every tensor
// starts as NaN, so that a kernel which reads what it must write, or leaves a part unwritten,
// shows.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"
#include "runtime/kernels.h"
#include "tests/runtime/op_of_bindings.h"

namespace meshwright::runtime {

class KernelHarness {
 public:
  using Values = std::vector<double>;
  using Bindings = OpBindings;

  explicit KernelHarness(planner::DType dtype = planner::DType::kF64) : dtype_(dtype) {
    block_.name = "test";
    rank_.facts.dtypes.compute = dtype;
    rank_.facts.dtypes.gradient = dtype;
    rank_.facts.dtypes.moment = dtype;
    rank_.facts.dtypes.statistics = dtype;
  }

  planner::RankProgram program;
  planner::RankBinding binding;
  planner::OpAttributes attributes;  ///< of the next Run
  bool first_micro_batch = false;    ///< gradients are written, not added to
  bool add_to_products = false;      ///< outputs of kLinear and kLinearInputGrad

  RankContext& rank() { return rank_; }
  planner::DType dtype() const { return dtype_; }

  /// New tensor of the harness's dtype, all NaN.
  void Add(const std::string& name, std::vector<int64_t> shape) {
    Add(name, std::move(shape), dtype_);
  }
  void Add(const std::string& name, std::vector<int64_t> shape, planner::DType dtype) {
    planner::TensorView view;
    view.name = name;
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.offset = static_cast<int64_t>(arena_.size());
    arena_.resize(arena_.size() + static_cast<size_t>((view.bytes() + 63) / 64 * 64),
                  std::byte{0xFF});
    block_.tensors.push_back(view);
  }
  /// New tensor with given values.
  void Add(const std::string& name, std::vector<int64_t> shape, const Values& values) {
    Add(name, std::move(shape));
    Set(name, values);
  }
  void AddScalar(const std::string& name, double value) {
    Add(name, {1}, planner::DType::kF64);
    Set(name, {value});
  }
  void AddLong(const std::string& name, int64_t value) {
    Add(name, {1}, planner::DType::kI64);
    std::memcpy(At(name), &value, sizeof(value));
  }
  void AddInts(const std::string& name, std::vector<int64_t> shape,
               const std::vector<int32_t>& values) {
    Add(name, std::move(shape), planner::DType::kI32);
    std::memcpy(At(name), values.data(), values.size() * sizeof(int32_t));
  }
  /// New name for the memory of `of`.
  void Alias(const std::string& name, const std::string& of) {
    planner::TensorView view = View(of);
    view.name = name;
    block_.tensors.push_back(view);
  }

  void Set(const std::string& name, const Values& values) {
    const planner::TensorView& view = View(name);
    ASSERT_EQ(static_cast<int64_t>(values.size()), view.elements()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == planner::DType::kF32) {
        reinterpret_cast<float*>(At(name))[i] = static_cast<float>(values[i]);
      } else {
        reinterpret_cast<double*>(At(name))[i] = values[i];
      }
    }
  }
  Values Get(const std::string& name) {
    const planner::TensorView& view = View(name);
    Values values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = view.dtype == planner::DType::kF32
                      ? static_cast<double>(reinterpret_cast<float*>(At(name))[i])
                      : reinterpret_cast<double*>(At(name))[i];
    }
    return values;
  }
  double Scalar(const std::string& name) { return Get(name)[0]; }
  int64_t Long(const std::string& name) {
    int64_t value = 0;
    std::memcpy(&value, At(name), sizeof(value));
    return value;
  }
  void Poison(const std::string& name) {
    std::memset(At(name), 0xFF, static_cast<size_t>(View(name).bytes()));
  }

  /// Runs one op with {operand, tensor} pairs; operands left out are absent.
  Status Run(planner::OpKind kind, const Bindings& bindings) {
    const planner::Op op =
        OpOfBindings(kind, attributes, bindings, {!first_micro_batch, add_to_products},
                     [this](const std::string& tensor) { return Index(tensor); });
    MW_RETURN_IF_ERROR(planner::CheckOp(block_, op, program));
    const Kernel kernel = CpuKernels().kernels[static_cast<size_t>(kind)];
    MW_CHECK(kernel != nullptr);
    rank_.program = &program;  // here, as harnesses may be copied
    rank_.binding = &binding;
    const planner::Instance instance;
    const planner::Task task;
    return kernel(OpCall{rank_, block_, op, instance, task, arena_.data()});
  }

 private:
  size_t Index(const std::string& name) const {
    for (size_t i = block_.tensors.size(); i-- > 0;) {
      if (block_.tensors[i].name == name) return i;
    }
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }
  const planner::TensorView& View(const std::string& name) const {
    return block_.tensors[Index(name)];
  }
  std::byte* At(const std::string& name) {
    return arena_.data() + static_cast<size_t>(View(name).offset);
  }

  planner::DType dtype_;
  planner::Block block_;
  RankContext rank_;
  std::vector<std::byte> arena_;
};

/// `count` normal values, the same for the same seed.
inline std::vector<double> Random(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& v : values) v = normal(engine);
  return values;
}

inline double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline void ExpectClose(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = 0.0;
  for (double e : expected) scale = std::max(scale, std::fabs(e));
  for (size_t i = 0; i < found.size(); ++i) {
    // Written so that a NaN fails.
    EXPECT_TRUE(std::fabs(found[i] - expected[i]) <= tolerance * std::max(scale, 1e-300))
        << what << "[" << i << "]: " << found[i] << " instead of " << expected[i];
  }
}

/// Compares `analytic` with central differences of `loss` over every element of tensor `name`.
inline void ExpectGradient(KernelHarness& harness, const std::string& name,
                           const std::function<double()>& loss, const std::vector<double>& analytic,
                           double tolerance = 1e-6) {
  const std::vector<double> values = harness.Get(name);
  std::vector<double> numeric(values.size());
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<double> moved = values;
    moved[i] = values[i] + kStep;
    harness.Set(name, moved);
    const double up = loss();
    moved[i] = values[i] - kStep;
    harness.Set(name, moved);
    numeric[i] = (up - loss()) / (2 * kStep);
  }
  harness.Set(name, values);
  loss();  // results again belong to the values
  ExpectClose(analytic, numeric, tolerance, "gradient of " + name);
}

}  // namespace meshwright::runtime
