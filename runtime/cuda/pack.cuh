// Groups of elements that move in one load or store, and their fp32 values.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "runtime/cuda/operands.h"

namespace meshwright::runtime::cuda {

/// Elements of T in 16 bytes: the width of fast paths. Their scalar twins have width 1.
template <typename T>
inline constexpr int kWide = static_cast<int>(16 / sizeof(T));

/// N elements of T, as raw words: 16, 8 or 4 bytes, aligned to their size.
template <typename T, int N>
struct Pack {
  static constexpr int kWords = static_cast<int>(N * sizeof(T) / 4);
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  uint32_t words[kWords];

  __device__ static Pack Load(const T* p) {
    Pack pack;
    if constexpr (kWords == 4) {
      const uint4 q = *reinterpret_cast<const uint4*>(p);
      pack.words[0] = q.x, pack.words[1] = q.y, pack.words[2] = q.z, pack.words[3] = q.w;
    } else if constexpr (kWords == 2) {
      const uint2 q = *reinterpret_cast<const uint2*>(p);
      pack.words[0] = q.x, pack.words[1] = q.y;
    } else {
      pack.words[0] = *reinterpret_cast<const uint32_t*>(p);
    }
    return pack;
  }
  __device__ void Store(T* p) const {
    if constexpr (kWords == 4) {
      *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(p) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(p) = words[0];
    }
  }
  __device__ static Pack Zero() {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kWords; ++i) pack.words[i] = 0;
    return pack;
  }
  __device__ static Pack From(const float (&x)[N]) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        pack.words[i] = __float_as_uint(x[i]);
      } else {
        const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i]));
        const uint32_t high = __bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i + 1]));
        pack.words[i] = low | high << 16;
      }
    }
    return pack;
  }
  __device__ void Unpack(float (&x)[N]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        x[i] = __uint_as_float(words[i]);
      } else {
        // A bf16 is the upper half of an fp32.
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      }
    }
  }
};

template <typename T>
struct Pack<T, 1> {
  T element;

  __device__ static Pack Load(const T* p) { return {*p}; }
  __device__ void Store(T* p) const { *p = element; }
  __device__ static Pack Zero() {
    const float zero[1] = {0.0f};
    return From(zero);
  }
  __device__ static Pack From(const float (&x)[1]) {
    if constexpr (std::is_same_v<T, float>) {
      return {x[0]};
    } else {
      return {__float2bfloat16_rn(x[0])};
    }
  }
  __device__ void Unpack(float (&x)[1]) const {
    if constexpr (std::is_same_v<T, float>) {
      x[0] = element;
    } else {
      x[0] = __bfloat162float(element);
    }
  }
};

/// N fp32 values, N = 1, 4 or 8, aligned to 16 bytes unless N is 1.
template <int N>
__device__ void LoadFloats(const float* p, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 q = *reinterpret_cast<const float4*>(p + i);
      x[i] = q.x, x[i + 1] = q.y, x[i + 2] = q.z, x[i + 3] = q.w;
    }
  }
}
template <int N>
__device__ void StoreFloats(float* p, const float (&x)[N]) {
  if constexpr (N == 1) {
    *p = x[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4*>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
  }
}

/// exp for values that end up as T: the special-function unit's accuracy suffices for bf16.
template <typename T>
__device__ float Exp(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    constexpr float kLog2E = 1.44269504088896341f;
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
    return y;
  }
}
template <typename T>
__device__ float Divide(float a, float b) {
  if constexpr (std::is_same_v<T, float>) {
    return a / b;
  } else {
    return __fdividef(a, b);
  }
}

}  // namespace meshwright::runtime::cuda
