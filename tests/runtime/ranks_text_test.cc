// Texts of processes that were forked.
#include "runtime/ranks_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace meshwright::runtime {
namespace {

using testing::HasSubstr;

TEST(TextOfRanks, IsThatOfRankZero) {
  const auto text = TextOfRanks({3}, [](const LaunchFacts& facts) -> Result<std::string> {
    return std::to_string(facts.rank) + std::string(100'000, 'x');  // more than a pipe holds
  });
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text, "0" + std::string(100'000, 'x'));
  const auto nothing = TextOfRanks({}, [](const LaunchFacts&) { return std::string(); });
  ASSERT_TRUE(nothing.ok()) << nothing.status().message();
  EXPECT_EQ(*nothing, "");
}

TEST(TextOfRanks, TheStatusOfTheRankThatFailedComesBack) {
  const auto text = TextOfRanks({2, 0.05, 5}, [](const LaunchFacts& facts) -> Result<std::string> {
    if (facts.rank == 1) return Infeasible("it does not fit");
    while (true) pause();
  });
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status(), Infeasible("it does not fit"));
}

TEST(TextOfRanks, ARankThatIsKilledIsNamed) {
  const auto text = TextOfRanks({2, 0.05, 5}, [](const LaunchFacts& facts) -> Result<std::string> {
    if (facts.rank == 1) raise(SIGKILL);
    while (true) pause();
  });
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kRunFailed);
  EXPECT_THAT(text.status().message(), HasSubstr("rank 1 was ended by signal 9"));
}

TEST(TextOfRanks, NumbersOfRanksAreChecked) {
  const auto text = TextOfRanks({0}, [](const LaunchFacts&) { return std::string(); });
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidInput);
}

}  // namespace
}  // namespace meshwright::runtime
