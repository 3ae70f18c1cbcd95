#include "runtime/cuda/attention_graph.h"

#include <string>

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using Id = CudnnGraphBuilder::Id;
using T = AttentionTensor;

/// Heads of packed or unpacked rows: [samples, heads, S, d] by strides.
CudnnTensor Heads(const AttentionGraphSpec& spec, int64_t heads, int64_t row) {
  const AttentionShape& s = spec.shape;
  CudnnTensor t;
  t.type = CUDNN_DATA_BFLOAT16;
  const int64_t dims[4] = {spec.samples, heads, s.sequence, s.head_dim};
  const int64_t strides[4] = {row, s.head_dim, s.batch * row, 1};
  for (int i = 0; i < 4; ++i) t.dims[i] = dims[i], t.strides[i] = strides[i];
  return t;
}

/// A dense [samples, heads, rows, columns].
CudnnTensor Dense(const AttentionGraphSpec& spec, int64_t rows, int64_t columns,
                  cudnnDataType_t type = CUDNN_DATA_FLOAT) {
  CudnnTensor t;
  t.type = type;
  const int64_t heads = spec.shape.heads;
  const int64_t dims[4] = {spec.samples, heads, rows, columns};
  const int64_t strides[4] = {heads * rows * columns, rows * columns, columns, 1};
  for (int i = 0; i < 4; ++i) t.dims[i] = dims[i], t.strides[i] = strides[i];
  return t;
}

class Graph {
 public:
  Graph(const AttentionGraphSpec& spec, CudnnGraphBuilder& builder) : spec_(spec), b_(builder) {
    const AttentionShape& s = spec.shape;
    packed_q_ = Heads(spec, s.heads, s.packed());
    packed_kv_ = Heads(spec, s.kv_heads, s.packed());
    rows_o_ = Heads(spec, s.heads, s.heads * s.head_dim);
    scores_ = Dense(spec, s.sequence, s.sequence);
    per_row_ = Dense(spec, s.sequence, 1);
    q_ = b_.Real(IdOf(T::kQuery), packed_q_);
    key_t_ = b_.Real(IdOf(T::kKey), packed_kv_.Transposed());
    scale_ = b_.Scalar(IdOf(T::kScale), CUDNN_DATA_FLOAT);
  }

  void Forward() {
    const Id value = b_.Real(IdOf(T::kValue), packed_kv_);
    const Id o = b_.Real(IdOf(T::kOutput), rows_o_);
    const Id lse = b_.Real(IdOf(T::kLogSumExp), per_row_);
    const Id x = Mask(ScaledScores());

    const Id top = b_.Virtual(per_row_);
    b_.Reduce(CUDNN_REDUCE_TENSOR_MAX, x, top);
    const Id e = b_.Pointwise(CUDNN_POINTWISE_EXP, b_.Pointwise(CUDNN_POINTWISE_SUB, x, top));
    const Id sum = b_.Virtual(per_row_);
    b_.Reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
    b_.Pointwise(CUDNN_POINTWISE_ADD, top, b_.Pointwise(CUDNN_POINTWISE_LOG, sum), lse);
    CudnnTensor half = scores_;
    half.type = CUDNN_DATA_BFLOAT16;
    const Id p = b_.Pointwise(CUDNN_POINTWISE_DIV, e, sum, b_.Virtual(half));
    b_.MatrixProduct(p, value, o);
  }

  void Backward() {
    const AttentionShape& s = spec_.shape;
    const Id value_t = b_.Real(IdOf(T::kValue), packed_kv_.Transposed());
    const Id o = b_.Real(IdOf(T::kOutput), rows_o_);
    const Id d_o = b_.Real(IdOf(T::kOutputGrad), rows_o_);
    const Id lse = b_.Real(IdOf(T::kLogSumExp), per_row_);
    const Id dq = b_.Real(IdOf(T::kQueryGrad), packed_q_);
    const Id dk = b_.Real(IdOf(T::kKeyGrad), packed_kv_);
    const Id dv = b_.Real(IdOf(T::kValueGrad), packed_kv_);

    // Row sums of dO * O.
    const Id product =
        b_.Pointwise(CUDNN_POINTWISE_MUL, d_o, o, b_.Virtual(Dense(spec_, s.sequence, s.head_dim)));
    const Id sum = b_.Virtual(per_row_);
    b_.Reduce(CUDNN_REDUCE_TENSOR_ADD, product, sum);
    // The factor stands where dropout would; without it the engines keep a score matrix in memory.
    const Id one = b_.Scalar(IdOf(T::kOne), CUDNN_DATA_FLOAT);
    const Id row_sum =
        b_.Pointwise(CUDNN_POINTWISE_MUL, sum, one, b_.Real(IdOf(T::kRowSum), per_row_));

    // P = exp(scores - lse); dV = P^T dO
    const Id shifted = b_.Pointwise(CUDNN_POINTWISE_SUB, ScaledScores(), lse);
    const Id p = b_.Pointwise(CUDNN_POINTWISE_EXP, Mask(shifted));
    TransposedProduct(p, d_o, dv);

    // dS = scale * P * (dO V^T - row sum); dK = dS^T Q
    const Id dp = b_.Virtual(scores_);
    b_.MatrixProduct(d_o, value_t, dp);
    const Id centred = b_.Pointwise(CUDNN_POINTWISE_SUB, dp, row_sum);
    const Id ds =
        b_.Pointwise(CUDNN_POINTWISE_MUL, b_.Pointwise(CUDNN_POINTWISE_MUL, centred, p), scale_);
    TransposedProduct(ds, q_, dk);

    // dQ = dS K
    const Id key = b_.Virtual(packed_kv_);
    b_.Reshape(key_t_, key);
    if (spec_.deterministic) {
      b_.MatrixProduct(ds, key, dq);
    } else {
      const Id sums = b_.Real(IdOf(T::kQueryGradSum), Dense(spec_, s.sequence, s.head_dim));
      b_.MatrixProduct(ds, key, sums);
      b_.Pointwise(CUDNN_POINTWISE_IDENTITY, sums, CudnnGraphBuilder::kNew, dq);
    }
  }

 private:
  Id ScaledScores() {
    const Id products = b_.Virtual(scores_);
    b_.MatrixProduct(q_, key_t_, products);
    return b_.Pointwise(CUDNN_POINTWISE_MUL, products, scale_);
  }

  /// -infinity where a query does not see a key.
  Id Mask(Id x) {
    const AttentionShape& s = spec_.shape;
    if (!s.causal && s.window == 0) return x;
    const Id hidden = b_.Scalar(IdOf(T::kMinusInfinity), CUDNN_DATA_FLOAT);
    if (s.causal) {
      const Id query = b_.Index(x, 2);
      const Id key = b_.Index(x, 3);
      x = b_.Select(x, hidden, b_.Compare(CUDNN_POINTWISE_CMP_GE, query, key));
    }
    if (s.window > 0) {
      const Id window = b_.Scalar(IdOf(T::kWindow), CUDNN_DATA_FLOAT);
      const Id query = b_.Index(x, 2);
      const Id last = b_.Shift(b_.Index(x, 3), window);
      x = b_.Select(x, hidden, b_.Compare(CUDNN_POINTWISE_CMP_GT, last, query));
    }
    return x;
  }

  /// out = left^T right, for [S, S] scores; summed over the query heads of a key-value head.
  void TransposedProduct(Id left, Id right, Id out) {
    const AttentionShape& s = spec_.shape;
    CudnnTensor turned = scores_.Transposed();
    turned.type = CUDNN_DATA_BFLOAT16;
    const Id left_t = b_.Virtual(turned);
    b_.Reshape(left, left_t);
    if (s.heads == s.kv_heads) {
      b_.MatrixProduct(left_t, right, out);
      return;
    }
    const Id all_heads = b_.Virtual(Dense(spec_, s.sequence, s.head_dim, CUDNN_DATA_BFLOAT16));
    b_.MatrixProduct(left_t, right, all_heads);
    b_.Reduce(CUDNN_REDUCE_TENSOR_ADD, all_heads, out);
  }

  const AttentionGraphSpec& spec_;
  CudnnGraphBuilder& b_;
  CudnnTensor packed_q_, packed_kv_, rows_o_, scores_, per_row_;
  Id q_ = 0, key_t_ = 0, scale_ = 0;
};

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Status CheckAttentionShape(const AttentionShape& s) {
  if (s.head_dim % 8 != 0 || s.head_dim > 256) {
    return Unsupported("head_dim " + std::to_string(s.head_dim) +
                       ": bf16 attention of GPU ranks takes multiples of 8 up to 256; change the "
                       "model's head_dim or compute in fp32");
  }
  if (s.window > 0 && !s.causal) {
    return Unsupported("window " + std::to_string(s.window) +
                       " without a causal mask: bf16 attention of GPU ranks takes windows only "
                       "with causal attention; compute in fp32");
  }
  MW_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.sequence > 0 && s.batch > 0);
  return Status::Ok();
}

Result<CudnnDescriptor> BuildAttentionGraph(const AttentionGraphSpec& spec,
                                            const CudnnTarget& target, CudnnGraphBuilder* builder) {
  MW_RETURN_IF_ERROR(CheckAttentionShape(spec.shape));
  MW_CHECK(spec.samples > 0 && spec.samples <= spec.shape.batch);
  Graph graph(spec, *builder);
  if (spec.backward) {
    graph.Backward();
  } else {
    graph.Forward();
  }
  return builder->Finish(target);
}

AttentionScratch LayOutScratch(const AttentionGraphSpec& spec, int64_t plan_bytes) {
  constexpr int64_t kAlignment = 256;
  const AttentionShape& s = spec.shape;
  const int64_t rows = spec.samples * s.heads * s.sequence;
  AttentionScratch scratch;
  int64_t end = 0;
  if (spec.backward && !spec.deterministic) {
    scratch.query_grad_sum = end;
    end += RoundUp(rows * s.head_dim * 4, kAlignment);
  }
  if (spec.backward) {
    scratch.row_sum = end;
    end += RoundUp(rows * 4, kAlignment);
  }
  scratch.plan = end;
  scratch.total = end + plan_bytes;
  return scratch;
}

}  // namespace meshwright::runtime::cuda
