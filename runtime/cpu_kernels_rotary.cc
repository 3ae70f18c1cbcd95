// Rotary position embedding in the half-split convention (GPT-NeoX, Llama): element i of a head
// pairs with element i + d/2 and turns by s * theta^(-2i/d) at position s.
#include <algorithm>
#include <cmath>

#include "runtime/cpu_kernels.h"

namespace meshwright::runtime::cpu {
namespace {

constexpr int64_t kPairBlock = 64;

/// Rotates pairs [begin, begin + width) of all q and k heads of one token.
template <typename T>
void RotateToken(T* token, int64_t heads, int64_t head_dim, int64_t begin, int64_t width,
                 const double* cosine, const double* sine) {
  for (int64_t head = 0; head < heads; ++head) {
    T* low = token + head * head_dim + begin;
    T* high = low + head_dim / 2;
    for (int64_t i = 0; i < width; ++i) {
      const auto x = static_cast<double>(low[i]);
      const auto y = static_cast<double>(high[i]);
      low[i] = static_cast<T>(x * cosine[i] - y * sine[i]);
      high[i] = static_cast<T>(y * cosine[i] + x * sine[i]);
    }
  }
}

template <typename T>
Status RotaryT(const OpCall& call) {
  const Operands operands(call);
  const planner::OpAttributes& a = call.op.attributes;
  MW_CHECK(a.head_dim % 2 == 0 && a.rope_theta > 0);
  const int64_t packed = (a.heads + 2 * a.kv_heads) * a.head_dim;
  T* qkv = operands.Get<T>("qkv", a.sequence * a.batch * packed);
  const double direction = a.inverse ? -1.0 : 1.0;
  const int64_t pairs = a.head_dim / 2;
  for (int64_t begin = 0; begin < pairs; begin += kPairBlock) {
    const int64_t width = std::min(kPairBlock, pairs - begin);
    double frequency[kPairBlock];
    double cosine[kPairBlock];
    double sine[kPairBlock];
    for (int64_t i = 0; i < width; ++i) {
      frequency[i] =
          std::pow(a.rope_theta, -static_cast<double>(begin + i) / static_cast<double>(pairs));
    }
    for (int64_t position = 0; position < a.sequence; ++position) {
      for (int64_t i = 0; i < width; ++i) {
        const double angle = static_cast<double>(position) * frequency[i];
        cosine[i] = std::cos(angle);
        sine[i] = direction * std::sin(angle);
      }
      for (int64_t sample = 0; sample < a.batch; ++sample) {
        RotateToken(qkv + (position * a.batch + sample) * packed, a.heads + a.kv_heads, a.head_dim,
                    begin, width, cosine, sine);
      }
    }
  }
  return Status::Ok();
}

}  // namespace

Status Rotary(const OpCall& call) {
  return ForDType(call, "qkv", [&](auto zero) { return RotaryT<decltype(zero)>(call); });
}

}  // namespace meshwright::runtime::cpu
