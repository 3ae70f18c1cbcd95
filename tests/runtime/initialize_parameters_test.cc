#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/counter_random.h"
#include "runtime/initialize.h"

namespace meshwright::runtime {
namespace {

using planner::DType;
using planner::InitKind;
using planner::ParameterEntry;

constexpr int64_t kGap = 5;  // elements between parameters, as alignment leaves them

ParameterEntry MakeEntry(const char* name, std::vector<int64_t> global, int32_t axis,
                         std::vector<planner::ParameterPart> parts, int64_t tp) {
  ParameterEntry e;
  e.name = name;
  e.global_shape = global;
  e.local_shape = global;
  e.axis = axis;
  e.parts = std::move(parts);
  e.init_std = 0.02;
  if (axis >= 0) {
    int64_t extent = 0;
    for (const auto& part : e.parts) extent += part.extent * part.copies / tp;
    e.local_shape[static_cast<size_t>(axis)] = extent;
  }
  return e;
}

/// A fused qkv with two kv heads (copied beyond tp 2), a matrix cut by columns, a padded
/// vocabulary, a replicated matrix, norm weights and a bias.
planner::RankProgram MakeProgram(int64_t tp, DType dtype) {
  const int64_t copies = tp > 2 ? tp / 2 : 1;
  planner::RankProgram program;
  auto& p = program.parameters;
  p.push_back(MakeEntry("qkv", {8 + 4 + 4, 3}, 0, {{8, 1}, {4, copies}, {4, copies}}, tp));
  p.push_back(MakeEntry("columns", {5, 8}, 1, {{8, 1}}, tp));
  p.push_back(MakeEntry("vocab", {12, 3}, 0, {{12, 1}}, tp));
  p.back().valid_rows = 10;
  p.push_back(MakeEntry("replicated", {3, 4}, -1, {}, tp));
  p.push_back(MakeEntry("ones", {8}, -1, {}, tp));
  p.back().init = InitKind::kOnes;
  p.push_back(MakeEntry("zeros", {8}, 0, {{8, 1}}, tp));
  p.back().init = InitKind::kZeros;
  p.push_back(MakeEntry("vocab", {12, 3}, 0, {{12, 1}}, tp));  // tied copy
  p.back().valid_rows = 10;
  p.back().tied_copy = true;
  int64_t offset = 0;
  for (ParameterEntry& e : p) {
    e.offset = offset;
    offset += e.elements() + kGap;
  }
  const int64_t bytes = offset * planner::SizeOf(dtype);
  program.arena.parameters = 64;
  program.arena.gradients = 64 + bytes;
  program.arena.optimizer = 64 + 2 * bytes;
  program.arena.io = 64 + 3 * bytes;
  program.arena.size = 128 + 3 * bytes;
  return program;
}

/// Parameter values of every rank, by element of the parameter area.
std::vector<double> Initialize(const planner::RankProgram& program, int64_t tp, int64_t tp_index,
                               uint64_t seed, DType dtype = DType::kF64) {
  planner::RankBinding binding;
  binding.tp_index = tp_index;
  RankContext rank;
  rank.program = &program;
  rank.binding = &binding;
  rank.facts.dtypes.compute = dtype;
  rank.grid.tp = tp;
  std::vector<std::byte> arena(static_cast<size_t>(program.arena.size), std::byte{0xFF});
  InitializeParameters(rank, seed, arena.data());
  for (int64_t i = program.arena.gradients; i < program.arena.io; ++i) {
    EXPECT_EQ(arena[static_cast<size_t>(i)], std::byte{0}) << "gradients and moments start at zero";
  }
  EXPECT_EQ(arena[0], std::byte{0xFF}) << "outside of the areas";
  EXPECT_EQ(arena[static_cast<size_t>(program.arena.io)], std::byte{0xFF});
  const auto count = (program.arena.gradients - program.arena.parameters) / planner::SizeOf(dtype);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* at = arena.data() + program.arena.parameters + i * planner::SizeOf(dtype);
    if (dtype == DType::kF64) {
      double v = 0;
      std::memcpy(&v, at, sizeof(v));
      values.push_back(v);
    } else if (dtype == DType::kF32) {
      float v = 0;
      std::memcpy(&v, at, sizeof(v));
      values.push_back(static_cast<double>(v));
    } else {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, at, 2);
      float v = 0;
      std::memcpy(&v, &bits, sizeof(v));
      values.push_back(static_cast<double>(v));
    }
  }
  return values;
}

TEST(InitializeParameters, SplitsReassembleToTheSameModel) {
  const planner::RankProgram whole = MakeProgram(1, DType::kF64);
  const auto expected = Initialize(whole, 1, 0, 7);
  for (int64_t tp : {2, 4}) {
    const planner::RankProgram program = MakeProgram(tp, DType::kF64);
    for (int64_t rank = 0; rank < tp; ++rank) {
      const auto local = Initialize(program, tp, rank, 7);
      for (size_t k = 0; k < program.parameters.size(); ++k) {
        const ParameterEntry& e = program.parameters[k];
        const int64_t base = whole.parameters[k].offset;
        const int64_t width = e.global_shape.size() > 1 ? e.global_shape[1] : 1;
        const int64_t local_width = e.local_shape.size() > 1 ? e.local_shape[1] : 1;
        for (const auto& s : planner::SegmentsOf(e, rank, tp)) {
          for (int64_t i = 0; i < s.length; ++i) {
            if (e.axis == 1) {
              for (int64_t row = 0; row < e.local_shape[0]; ++row) {
                EXPECT_EQ(
                    local[static_cast<size_t>(e.offset + row * local_width + s.local_begin + i)],
                    expected[static_cast<size_t>(base + row * width + s.global_begin + i)])
                    << e.name;
              }
            } else {
              for (int64_t j = 0; j < width; ++j) {
                EXPECT_EQ(local[static_cast<size_t>(e.offset + (s.local_begin + i) * width + j)],
                          expected[static_cast<size_t>(base + (s.global_begin + i) * width + j)])
                    << e.name;
              }
            }
          }
        }
      }
    }
  }
}

TEST(InitializeParameters, KindsPaddingTiesAndGaps) {
  const planner::RankProgram program = MakeProgram(1, DType::kF64);
  const auto values = Initialize(program, 1, 0, 7);
  const auto at = [&](size_t entry, int64_t i) {
    return values[static_cast<size_t>(program.parameters[entry].offset + i)];
  };
  for (int64_t i = 0; i < 36; ++i) {
    EXPECT_EQ(at(2, i) == 0.0, i >= 30) << "rows 10 and 11 are padding";
    EXPECT_EQ(at(6, i), at(2, i)) << "tied copy";
  }
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(at(4, i), 1.0);
    EXPECT_EQ(at(5, i), 0.0);
  }
  for (size_t e = 0; e < program.parameters.size(); ++e) {
    for (int64_t i = 0; i < kGap; ++i) EXPECT_EQ(at(e, program.parameters[e].elements() + i), 0.0);
  }
}

TEST(InitializeParameters, DTypesRoundTheSameValues) {
  const auto exact = Initialize(MakeProgram(2, DType::kF64), 2, 1, 3);
  const auto single = Initialize(MakeProgram(2, DType::kF32), 2, 1, 3, DType::kF32);
  const auto half = Initialize(MakeProgram(2, DType::kBf16), 2, 1, 3, DType::kBf16);
  ASSERT_EQ(single.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(single[i], static_cast<double>(static_cast<float>(exact[i])));
    EXPECT_NEAR(half[i], exact[i], std::fabs(exact[i]) / 256);
  }
}

TEST(InitializeParameters, SeedsAndNamesDiffer) {
  const planner::RankProgram program = MakeProgram(1, DType::kF64);
  EXPECT_NE(Initialize(program, 1, 0, 1), Initialize(program, 1, 0, 2));
  planner::RankProgram renamed = program;
  renamed.parameters[0].name = "other";
  EXPECT_NE(Initialize(program, 1, 0, 1)[0], Initialize(renamed, 1, 0, 1)[0]);
}

TEST(CounterRandom, PhiloxKnownAnswers) {
  // Vectors of the authors' Random123 test suite (philox4x32, 10 rounds).
  EXPECT_EQ(Philox(0, 0, 0), (std::array<uint64_t, 2>{0x6627e8d5e169c58d, 0xbc57ac4c9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (std::array<uint64_t, 2>{0x408f276d41c83b0e, 0xa20bc7c66d5451fd}));
}

TEST(CounterRandom, NormalHasTheMomentsOfANormal) {
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double z = StandardNormal(42, 5, static_cast<uint64_t>(i));
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  // Five standard errors.
  EXPECT_NEAR(sum / kCount, 0.0, 5.0 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1.0, 5.0 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourth / kCount, 3.0, 5.0 * std::sqrt(96.0 / kCount));
}

}  // namespace
}  // namespace meshwright::runtime
