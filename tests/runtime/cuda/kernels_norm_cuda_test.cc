// Norms, forward and backward, against their CPU twins.
#include "tests/runtime/cuda/twin_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::NormKind;
using planner::OpKind;

class CudaNorm : public CudaKernelTest {};
MW_CUDA_KERNEL_TESTS(CudaNorm);

/// Rows and widths: one of each way to hold a row, rows too long for it, odd ones, many rows.
struct Shape {
  int64_t rows, h;
  int64_t shift = 0;
};
constexpr Shape kShapes[] = {{1, 1},     {3, 5},     {7, 64},    {5, 64, 4},  {37, 768},
                             {9, 1000},  {3, 2048},  {5, 4096},  {2, 5120},   {3, 8192},
                             {2, 16384}, {2, 20000}, {2, 16388}, {3000, 264}, {1500, 1600}};

struct Variant {
  NormKind norm;
  bool beta, one_plus, extra;  ///< extra: delta forward, dr_in backward
};
constexpr Variant kVariants[] = {{NormKind::kRmsNorm, false, false, true},
                                 {NormKind::kRmsNorm, false, true, false},
                                 {NormKind::kLayerNorm, true, false, true},
                                 {NormKind::kLayerNorm, false, false, false}};

void AddWeights(TwinOp& t, const Shape& s, const Variant& v) {
  t.shift = s.shift;
  t.cpu.attributes.norm = v.norm;
  t.cpu.attributes.one_plus = v.one_plus;
  t.cpu.attributes.eps = 1e-5;
  t.Add("gamma", {s.h}, Random(s.h, 1));
  t.Add("beta", {s.h}, Random(s.h, 2));
}

int64_t Statistics(const Shape& s, const Variant& v) {
  return v.norm == NormKind::kLayerNorm ? 2 * s.rows : s.rows;
}

void CheckForward(DType dtype, const Shape& s, const Variant& v) {
  TwinOp t(dtype);
  AddWeights(t, s, v);
  t.Add("r", {s.rows, s.h}, Random(s.rows * s.h, 3));
  t.Add("delta", {s.rows, s.h}, Random(s.rows * s.h, 4));
  t.Add("r1", {s.rows, s.h});
  t.Add("n", {s.rows, s.h});
  t.Add("n again", {s.rows, s.h});
  t.AddFloat("stat", {Statistics(s, v)});
  TwinOp::Bindings b = {{"r", "r"}, {"gamma", "gamma"}, {"n", "n"}, {"stat", "stat"}};
  if (v.extra) {
    b.insert(b.end(), {{"delta", "delta"}, {"r1", "r1"}});
    MW_ASSERT_OK(t.Run(OpKind::kNorm, b));
    t.Expect("r1", RoundedOnce(dtype));
    // What follows has the sum as the GPU rounds it.
    t.cpu.Set("r", t.Gpu("r1"));
    t.SetGpu("r", t.Gpu("r1"));
    b.erase(b.end() - 2);
    b.back() = {"r1", "r"};  // in place
    t.cpu.Poison("n");
  }
  if (v.beta) b.emplace_back("beta", "beta");
  MW_ASSERT_OK(t.Run(OpKind::kNorm, b));
  t.Expect("n", RoundedOnce(dtype));
  t.Expect("stat", {1e-5, 1e-6});
  TwinOp::Bindings apply = {{"r1", "r"}, {"stat", "stat"}, {"gamma", "gamma"}, {"n", "n again"}};
  if (v.beta) apply.emplace_back("beta", "beta");
  MW_ASSERT_OK(t.Run(OpKind::kNormApply, apply));
  t.Expect("n again", RoundedOnce(dtype));
}

TEST_P(CudaNorm, Forward) {
  for (const Shape& s : kShapes) {
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.h << " beta " << v.beta);
      // A layer norm over one element is 0 / 0 but for eps: nothing to compare.
      if (s.h == 1 && v.norm == NormKind::kLayerNorm) continue;
      CheckForward(GetParam(), s, v);
    }
  }
}

void CheckSum(DType dtype, const Shape& s, bool other) {
  TwinOp t(dtype);
  AddWeights(t, s, kVariants[0]);
  t.Add("r", {s.rows, s.h}, Random(s.rows * s.h, 3));
  t.Add("delta", {s.rows, s.h}, Random(s.rows * s.h, 4));
  t.Add("delta_other", {s.rows, s.h}, Random(s.rows * s.h, 5));
  t.Add("n", {s.rows, s.h});
  t.AddFloat("stat", {s.rows});
  TwinOp::Bindings b = {{"r", "r"},  {"delta", "delta"}, {"gamma", "gamma"},
                        {"r1", "r"}, {"n", "n"},         {"stat", "stat"}};
  if (other) b.emplace_back("delta_other", "delta_other");
  MW_ASSERT_OK(t.Run(OpKind::kNorm, b));
  t.Expect("r", RoundedOnce(dtype));
  // The sum is rounded before the norm, which the twin does not do.
  const bool rounds = dtype == DType::kBf16;
  t.Expect("n", rounds ? Tolerance{1.0 / 64, 1e-3} : RoundedOnce(DType::kF32));
}

TEST_P(CudaNorm, SumWithDeltasAndNormInOneOp) {
  for (const Shape& s : {Shape{5, 4096}, Shape{4, 1001}, Shape{3, 16384}}) {
    for (const bool other : {false, true}) CheckSum(GetParam(), s, other);
  }
}

void CheckBackward(DType dtype, const Shape& s, const Variant& v) {
  TwinOp t(dtype);
  AddWeights(t, s, v);
  t.Add("dn", {s.rows, s.h}, Random(s.rows * s.h, 3));
  t.Add("r1", {s.rows, s.h}, Random(s.rows * s.h, 4));
  t.Add("dr", {s.rows, s.h}, Random(s.rows * s.h, 5));
  t.Add("out", {s.rows, s.h});
  auto statistics = Random(Statistics(s, v), 6);  // means, then positive reciprocals
  for (size_t i = statistics.size() - static_cast<size_t>(s.rows); i < statistics.size(); ++i) {
    statistics[i] = 0.5 + std::fabs(statistics[i]);
  }
  t.AddFloat("stat", {Statistics(s, v)}, statistics);
  t.AddFloat("dgamma", {s.h});
  t.AddFloat("dbeta", {s.h});
  TwinOp::Bindings b = {{"dn", "dn"},       {"r1", "r1"},      {"stat", "stat"},
                        {"gamma", "gamma"}, {"dr_out", "out"}, {"gamma_grad", "dgamma"}};
  if (v.extra) b.emplace_back("dr_in", "dr");
  if (v.beta) b.emplace_back("beta_grad", "dbeta");
  t.cpu.first_micro_batch = true;
  MW_ASSERT_OK(t.Run(OpKind::kNormGrad, b));
  const Tolerance sums = {1e-5, 1e-5};
  t.Expect("out", RoundedOnce(dtype));
  t.Expect("dgamma", sums);
  if (v.beta) t.Expect("dbeta", sums);
  t.cpu.first_micro_batch = false;
  b[4] = {"dr_out", v.extra ? "dr" : "dn"};  // over an input
  MW_ASSERT_OK(t.Run(OpKind::kNormGrad, b));
  t.Expect(v.extra ? "dr" : "dn", RoundedOnce(dtype));
  t.Expect("dgamma", sums);
  if (v.beta) t.Expect("dbeta", sums);
}

/// A width of each configuration, with more rows than blocks, and fewer.
constexpr Shape kBackwardShapes[] = {{1, 64},     {3, 264},  {1061, 264}, {2200, 520}, {601, 2048},
                                     {300, 4096}, {1, 3072}, {9, 8192},   {3, 16384}};

void CheckBackwards(DType dtype, const Shape& s) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.h << " beta " << v.beta);
    CheckBackward(dtype, s, v);
  }
}

TEST_P(CudaNorm, Backward) {
  for (const Shape& s : kShapes) CheckBackwards(GetParam(), s);
  for (const Shape& s : kBackwardShapes) CheckBackwards(GetParam(), s);
}

TEST_P(CudaNorm, Large) {
  const Shape s = {8192, 4096};  // 64 MiB a tensor in bf16
  CheckForward(GetParam(), s, kVariants[1]);
  CheckBackward(GetParam(), s, kVariants[0]);
}

}  // namespace
}  // namespace meshwright::runtime::cuda
