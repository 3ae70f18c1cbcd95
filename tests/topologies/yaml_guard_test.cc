#include "topologies/yaml_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace meshwright {
namespace {

using ::testing::HasSubstr;

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string YamlError(const std::string& text) {
  const Status status = CheckYamlBounds(text, "f.yaml");
  EXPECT_EQ(status.code(), StatusCode::kInvalidInput) << text.substr(0, 100);
  return status.message();
}

TEST(Utf8, AcceptsEveryLengthAndTheEdges) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"));
  EXPECT_TRUE(IsUtf8("\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
}

TEST(Utf8, RefusesMalformedSequences) {
  for (const char* bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2",
                          "\xC2"
                          "a",
                          "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xF0\x90\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
    EXPECT_FALSE(IsUtf8(std::string("ok") + bad));
  }
}

TEST(TextBounds, SizeNulAndEncodingNameThePlace) {
  EXPECT_TRUE(CheckTextBounds(std::string(kMaxTextBytes, 'a'), "f").ok());
  EXPECT_EQ(CheckTextBounds(std::string(kMaxTextBytes + 1, 'a'), "f").message(),
            "f: found 4194305 bytes; allowed: at most 4194304 bytes; is this the right file?");
  EXPECT_THAT(CheckTextBounds(std::string("a\nb\0c", 5), "f").message(),
              HasSubstr("f: line 2: found a NUL byte at offset 3"));
  EXPECT_THAT(CheckTextBounds("a\n\n\xFF", "f").message(),
              HasSubstr("f: line 3: found byte 0xFF at offset 3"));
}

TEST(JsonBounds, CountsBracketsOutsideStrings) {
  EXPECT_TRUE(CheckJsonBounds(Repeated("[", 64) + Repeated("]", 64), "f").ok());
  EXPECT_FALSE(CheckJsonBounds(Repeated("[", 65), "f").ok());
  EXPECT_FALSE(CheckJsonBounds(Repeated("{\"a\":", 65), "f").ok());
  EXPECT_TRUE(
      CheckJsonBounds("\"" + Repeated("[", 1000) + "\\\"" + Repeated("{", 1000) + "\"", "f").ok());
  EXPECT_TRUE(CheckJsonBounds(Repeated("[]", 1000), "f").ok());
}

TEST(YamlBounds, OrdinaryTextPasses) {
  for (const char* good :
       {"", "a: 1\n", "a: b & c\n", "a: b * c\n", "a: \"&x *y\"\n", "a: '&x ''*y'\n", "# &a *b\n",
        "a: 1 # *b\n", "a:\n  - b&c\n  - {d: e*f, g: [1, 2]}\n", "a: x[[[[\n", "- - - 1\n",
        "a: \"line\n  *b\"\n", "? a\n: b\n", "a: http://x/#y&z\n"}) {
    EXPECT_TRUE(CheckYamlBounds(good, "f").ok()) << good << CheckYamlBounds(good, "f").message();
  }
}

TEST(YamlBounds, AnchorsAndAliasesAreRefusedWithTheirLine) {
  EXPECT_EQ(YamlError("a: 1\nb: &x 2\n"),
            "f.yaml: line 2: found a YAML anchor ('&'); allowed: plain values; write the value "
            "out, or quote the text");
  for (const char* bad : {"a: *x\n", "- *x\n", "*x : 1\n", "a: [b, *x]\n", "a: {b: *x}\n",
                          "<<: *x\n", "a: \"b\"\nc: *x\n", "a: [\n*x]\n", "- - &x 1\n"}) {
    EXPECT_THAT(YamlError(bad), HasSubstr("YAML a")) << bad;
  }
}

TEST(YamlBounds, NestingOfEveryKindIsBounded) {
  EXPECT_THAT(YamlError(Repeated("[", 65)), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(YamlError("a: " + Repeated("{b: ", 65)), HasSubstr("nested deeper"));
  EXPECT_THAT(YamlError(Repeated("- ", 65) + "1"), HasSubstr("nested deeper"));
  EXPECT_THAT(YamlError(Repeated("? ", 65) + "1"), HasSubstr("nested deeper"));
  std::string stairs;
  for (int i = 0; i < 65; ++i) stairs += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(YamlError(stairs), HasSubstr("line 65: nested deeper"));
  EXPECT_TRUE(CheckYamlBounds(Repeated("a:\n  b:\n    - c\n", 1000), "f").ok());
}

TEST(YamlBounds, ValuesAreCounted) {
  EXPECT_TRUE(CheckYamlBounds("a: [" + Repeated("1,", 190000) + "1]", "f").ok());
  for (const char* piece : {"1,", "[],", "b: ,"}) {
    EXPECT_THAT(YamlError("a: [" + Repeated(piece, 250000) + "1]"),
                HasSubstr("more than 200000 values"));
  }
  EXPECT_THAT(YamlError(Repeated("- a\n", 250000)), HasSubstr("more than 200000 values"));
  EXPECT_THAT(YamlError(Repeated("---\n", 250000)), HasSubstr("more than 200000 values"));
}

TEST(YamlBounds, ControlCharactersAreRefused) {
  EXPECT_EQ(YamlError("a: 1\nb: \x04 2\n"),
            "f.yaml: line 2: found the control character 0x04; allowed: printable text; remove it");
  EXPECT_TRUE(CheckYamlBounds("a:\t1\r\n", "f").ok());
  EXPECT_THAT(YamlError("&\r,"), HasSubstr("control character 0x0D"));
}

TEST(YamlBounds, OneDocument) {
  for (const char* good : {"--- # first\na: 1\n...\n# end\n", "---\n", "a: [1", "x"}) {
    EXPECT_TRUE(CheckYamlBounds(good, "f").ok()) << good;
  }
  // YAML::LoadAll does not return from the last one.
  for (const char* bad : {"a: 1\n---\nb: 2\n", "a: 1\n...\nb: 2\n", ","}) {
    EXPECT_THAT(YamlError(bad), HasSubstr("after the first YAML document")) << bad;
  }
}

}  // namespace
}  // namespace meshwright
