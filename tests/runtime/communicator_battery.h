// What every back-end of communicators must do, as a function that each member runs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/communicator.h"

namespace meshwright::runtime::battery {

template <typename T>
constexpr planner::DType kDType = planner::DType::kF32;
template <>
inline constexpr planner::DType kDType<double> = planner::DType::kF64;
template <>
inline constexpr planner::DType kDType<int64_t> = planner::DType::kI64;

template <typename T>
std::byte* Bytes(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}

/// A value of member `rank` whose sums over members depend on the order of adding.
template <typename T>
T Value(int rank, int64_t i) {
  if constexpr (std::is_same_v<T, int64_t>) return rank * 1000 + i;
  const double scale[] = {1.0, 1e8, -1e8, 1e-3, 3.0};
  return static_cast<T>(scale[(rank + i) % 5] * (1.0 + 0.1 * static_cast<double>(rank + 7 * i)));
}

template <typename T>
std::vector<T> Values(int rank, int64_t count) {
  std::vector<T> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = Value<T>(rank, i);
  return v;
}

/// The sum that the interface promises: members in order, in the element type.
template <typename T>
T OrderedSum(int size, int64_t i) {
  T sum = Value<T>(0, i);
  for (int r = 1; r < size; ++r) sum += Value<T>(r, i);
  return sum;
}

inline Status Expect(bool condition, const Communicator& c, const std::string& what) {
  if (condition) return Status::Ok();
  return RunFailed(fmt::format("member {} of {}: wrong result of {}", c.rank(), c.size(), what));
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
Status CheckSums(Communicator& c, int64_t count) {
  const planner::DType dtype = kDType<T>;
  const int n = c.size();
  std::vector<T> v = Values<T>(c.rank(), count);
  MW_RETURN_IF_ERROR(c.AllReduce(Bytes(v), count, dtype));
  bool good = true;
  for (int64_t i = 0; i < count; ++i) {
    good = good && SameBits(v[static_cast<size_t>(i)], OrderedSum<T>(n, i));
  }
  MW_RETURN_IF_ERROR(Expect(good, c, "all_reduce"));

  for (const bool in_place : {false, true}) {
    std::vector<T> in = Values<T>(c.rank(), n * count);
    const std::vector<T> before = in;
    std::vector<T> apart(static_cast<size_t>(count));
    T* out = in_place ? in.data() + c.rank() * count : apart.data();
    MW_RETURN_IF_ERROR(c.ReduceScatter(Bytes(in), reinterpret_cast<std::byte*>(out), count, dtype));
    good = true;
    for (int64_t i = 0; i < n * count; ++i) {
      const bool own = i / std::max<int64_t>(count, 1) == c.rank();
      const auto at = static_cast<size_t>(i);
      if (own) good = good && SameBits(out[i - c.rank() * count], OrderedSum<T>(n, i));
      if (!own || !in_place) good = good && SameBits(in[at], before[at]);
    }
    MW_RETURN_IF_ERROR(Expect(good, c, in_place ? "reduce_scatter in place" : "reduce_scatter"));
  }
  return Status::Ok();
}

inline Status CheckMoves(Communicator& c, int64_t count) {
  const planner::DType dtype = planner::DType::kI32;
  const int n = c.size();
  const auto value = [](int rank, int64_t i) { return static_cast<int32_t>(rank * 100000 + i); };
  for (const bool in_place : {false, true}) {
    std::vector<int32_t> in(static_cast<size_t>(count));
    std::vector<int32_t> out(static_cast<size_t>(n * count), -1);
    int32_t* mine = in_place ? out.data() + c.rank() * count : in.data();
    for (int64_t i = 0; i < count; ++i) mine[i] = value(c.rank(), i);
    MW_RETURN_IF_ERROR(
        c.AllGather(reinterpret_cast<const std::byte*>(mine), Bytes(out), count, dtype));
    bool good = true;
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        good = good && out[static_cast<size_t>(r * count + i)] == value(r, i);
      }
    }
    MW_RETURN_IF_ERROR(Expect(good, c, in_place ? "all_gather in place" : "all_gather"));
  }
  for (int root = 0; root < n; ++root) {
    std::vector<int32_t> v(static_cast<size_t>(count), value(c.rank(), 1));
    MW_RETURN_IF_ERROR(c.Broadcast(Bytes(v), count, dtype, root));
    bool good = true;
    for (int32_t x : v) good = good && x == value(root, 1);
    MW_RETURN_IF_ERROR(Expect(good, c, "broadcast"));
  }
  std::vector<int32_t> in(static_cast<size_t>(n * count));
  std::vector<int32_t> out(in.size(), -1);
  for (int64_t i = 0; i < n * count; ++i) in[static_cast<size_t>(i)] = value(c.rank(), i);
  MW_RETURN_IF_ERROR(c.AllToAll(Bytes(in), Bytes(out), count, dtype));
  bool good = true;
  for (int r = 0; r < n; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      good = good && out[static_cast<size_t>(r * count + i)] == value(r, c.rank() * count + i);
    }
  }
  return Expect(good, c, "all_to_all");
}

/// Each member gets the data of the one before.
inline Status CheckShift(Communicator& c, int64_t count) {
  const std::vector<float> in = Values<float>(c.rank(), count);
  std::vector<float> out(in.size(), -1.0F);
  MW_RETURN_IF_ERROR(c.Shift(reinterpret_cast<const std::byte*>(in.data()), Bytes(out), count,
                             planner::DType::kF32));
  return Expect(out == Values<float>((c.rank() + c.size() - 1) % c.size(), count), c, "shift");
}

/// A message around the ring, in both senses.
inline Status CheckMessages(Communicator& c, int64_t count) {
  const int n = c.size();
  if (n == 1) return Status::Ok();
  for (const int step : {1, n - 1}) {
    const int next = (c.rank() + step) % n;
    const int before = (c.rank() + n - step) % n;
    std::vector<float> out = Values<float>(c.rank(), count);
    std::vector<float> in(out.size(), -1.0F);
    const auto send = [&] { return c.Send(Bytes(out), count, planner::DType::kF32, next); };
    // Rendezvous: somebody has to receive first.
    if (c.rank() != 0) MW_RETURN_IF_ERROR(c.Recv(Bytes(in), count, planner::DType::kF32, before));
    MW_RETURN_IF_ERROR(send());
    if (c.rank() == 0) MW_RETURN_IF_ERROR(c.Recv(Bytes(in), count, planner::DType::kF32, before));
    MW_RETURN_IF_ERROR(Expect(in == Values<float>(before, count), c, "send and recv"));
  }
  return Status::Ok();
}

/// Halves of a communicator in reversed order, used at the same time.
inline Status CheckSplit(Communicator& c) {
  const int color = c.rank() == c.size() - 1 && c.size() > 2 ? -1 : c.rank() % 2;
  MW_ASSIGN_OR_RETURN(auto part, c.Split(color, -c.rank(), fmt::format("half {}", color)));
  MW_RETURN_IF_ERROR(Expect((part == nullptr) == (color < 0), c, "split of a non-member"));
  if (part == nullptr) return Status::Ok();
  std::vector<int64_t> sum = {c.rank()};
  int64_t expected = 0;
  int members = 0;
  int after = 0;
  for (int r = 0; r < c.size(); ++r) {
    if (r % 2 != color || (r == c.size() - 1 && c.size() > 2)) continue;
    expected += r;
    ++members;
    after += r > c.rank() ? 1 : 0;
  }
  MW_RETURN_IF_ERROR(Expect(part->size() == members && part->rank() == after, c, "split"));
  MW_RETURN_IF_ERROR(part->AllReduce(Bytes(sum), 1, planner::DType::kI64));
  return Expect(sum[0] == expected, c, "all_reduce after split");
}

/// All operations with `count` elements.
inline Status CheckOperations(Communicator& c, int64_t count) {
  MW_RETURN_IF_ERROR(CheckSums<float>(c, count));
  MW_RETURN_IF_ERROR(CheckSums<double>(c, count));
  MW_RETURN_IF_ERROR(CheckSums<int64_t>(c, count));
  MW_RETURN_IF_ERROR(CheckMoves(c, count));
  MW_RETURN_IF_ERROR(CheckShift(c, count));
  MW_RETURN_IF_ERROR(CheckMessages(c, count));
  MW_RETURN_IF_ERROR(c.Barrier());
  return CheckSplit(c);
}

}  // namespace meshwright::runtime::battery
