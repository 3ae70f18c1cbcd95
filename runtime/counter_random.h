// Counter-based random numbers: a value is a function of (key, counter), so that ranks can draw any
// element alone. Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__  // GPU ranks draw the same values
#define MW_HOST_DEVICE __host__ __device__
#else
#define MW_HOST_DEVICE
#endif

namespace meshwright::runtime {

/// Two 64-bit words of the stream `key` at `counter`; `stream` gives independent streams of a key.
MW_HOST_DEVICE inline std::array<uint64_t, 2> Philox(uint64_t key, uint64_t stream, uint64_t counter) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {uint64_t{x[0]} << 32 | x[1], uint64_t{x[2]} << 32 | x[3]};
}

/// Uniform in (0, 1]: never zero, so that its logarithm is finite.
MW_HOST_DEVICE inline double UnitInterval(uint64_t word) {
  return (static_cast<double>(word >> 11) + 1.0) * 0x1.0p-53;
}

/// Standard normal value of (key, stream, counter), by Box and Muller.
MW_HOST_DEVICE inline double StandardNormal(uint64_t key, uint64_t stream, uint64_t counter) {
  const std::array<uint64_t, 2> words = Philox(key, stream, counter);
  return std::sqrt(-2.0 * std::log(UnitInterval(words[0]))) *
         std::cos(6.283185307179586 * UnitInterval(words[1]));
}

/// Integer in [0, bound), bound >= 1; the bias of at most bound / 2^64 is far below what data show.
inline int64_t UniformBelow(uint64_t word, int64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(Wide{word} * static_cast<uint64_t>(bound) >> 64);
}

}  // namespace meshwright::runtime
