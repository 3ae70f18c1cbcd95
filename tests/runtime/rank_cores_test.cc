// Ranks that are threads keep to their cores.
#include "runtime/rank_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

namespace meshwright::runtime {
namespace {

std::vector<planner::RankBinding> Grid(int64_t tp, int64_t dp, int64_t pp) {
  std::vector<planner::RankBinding> ranks;
  for (int64_t p = 0; p < pp; ++p) {
    for (int64_t d = 0; d < dp; ++d) {
      for (int64_t t = 0; t < tp; ++t) {
        planner::RankBinding rank;
        rank.tp_index = t;
        rank.dp_index = d;
        rank.pp_index = p;
        ranks.push_back(rank);
      }
    }
  }
  return ranks;
}

cpu_set_t CoresOf(const RankCores& cores, int rank) {
  cpu_set_t set;
  std::thread([&] {
    cores.BindThisThread(rank);
    sched_getaffinity(0, sizeof(set), &set);
  }).join();
  return set;
}

int Common(const cpu_set_t& a, const cpu_set_t& b) {
  cpu_set_t both;
  CPU_AND(&both, &a, &b);
  return CPU_COUNT(&both);
}

class RankCoresTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sched_getaffinity(0, sizeof(all_), &all_);
    if (CPU_COUNT(&all_) < 2) GTEST_SKIP() << "needs two cores";
  }
  cpu_set_t all_;
};

TEST_F(RankCoresTest, TwoRanksHaveCoresOfTheirOwn) {
  const RankCores cores(Grid(2, 1, 1));
  const cpu_set_t first = CoresOf(cores, 0);
  const cpu_set_t second = CoresOf(cores, 1);
  EXPECT_GT(CPU_COUNT(&first), 0);
  EXPECT_GT(CPU_COUNT(&second), 0);
  EXPECT_EQ(Common(first, second), 0);
}

TEST_F(RankCoresTest, ReplicasStayTogether) {
  const int64_t dp = CPU_COUNT(&all_);
  const RankCores cores(Grid(2, dp, 2));
  const cpu_set_t set = CoresOf(cores, 0);
  const cpu_set_t partner = CoresOf(cores, 1);
  const cpu_set_t next_stage = CoresOf(cores, static_cast<int>(2 * dp));
  const cpu_set_t other_replica = CoresOf(cores, 2);
  EXPECT_EQ(CPU_COUNT(&set), 1);
  EXPECT_TRUE(CPU_EQUAL(&set, &partner));
  EXPECT_TRUE(CPU_EQUAL(&set, &next_stage));
  EXPECT_EQ(Common(set, other_replica), 0);
}

TEST_F(RankCoresTest, UnevenRanksStayWhereTheyAre) {
  const RankCores cores(Grid(1, CPU_COUNT(&all_) + 1, 1));
  const cpu_set_t set = CoresOf(cores, 0);
  EXPECT_TRUE(CPU_EQUAL(&set, &all_));
}

}  // namespace
}  // namespace meshwright::runtime
