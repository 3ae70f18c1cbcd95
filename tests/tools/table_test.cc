#include "tools/table.h"

#include <gtest/gtest.h>

namespace meshwright::tools {
namespace {

TEST(NumbersTest, Thousands) {
  EXPECT_EQ(Thousands(0), "0");
  EXPECT_EQ(Thousands(999), "999");
  EXPECT_EQ(Thousands(1000), "1,000");
  EXPECT_EQ(Thousands(-123456), "-123,456");
  EXPECT_EQ(Thousands(70553706496), "70,553,706,496");
}

TEST(NumbersTest, Bytes) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.50 KiB");
  EXPECT_EQ(BytesText((int64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(BytesText(int64_t{80} << 30), "80.0 GiB");
}

TEST(NumbersTest, Seconds) {
  EXPECT_EQ(SecondsText(250e-9), "250 ns");
  EXPECT_EQ(SecondsText(12.34e-6), "12.3 us");
  EXPECT_EQ(SecondsText(0.9999e-3), "1.00 ms");
  EXPECT_EQ(SecondsText(12.3), "12.3 s");
  EXPECT_EQ(SecondsText(200), "3 min 20 s");
  EXPECT_EQ(SecondsText(7322), "2 h 2 min");
}

TEST(NumbersTest, ThreeDigits) {
  EXPECT_EQ(NumberText(0.12345), "0.123");
  EXPECT_EQ(NumberText(45.67), "45.7");
  EXPECT_EQ(NumberText(1234.5), "1,235");
  EXPECT_EQ(NumberText(0), "0.000");
}

TEST(TableTest, NumbersLeanRightTextLeft) {
  Table table({"name", "bytes"});
  table.Row({"a", "1 B"});
  table.Row({"long name", "100 B"});
  EXPECT_EQ(table.ToText({}),
            "  name       bytes\n"
            "  a            1 B\n"
            "  long name  100 B\n");
}

TEST(TableTest, EmptyHeadingsAreLeftOut) {
  Table table({"", ""});
  table.Row({"x", "y"});
  EXPECT_EQ(table.ToText({}, 0), "x  y\n");
}

}  // namespace
}  // namespace meshwright::tools
