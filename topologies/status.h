// Status and Result<T>: how every library of Meshwright reports input, infeasibility, I/O and
// device errors (DESIGN: libraries never print or exit). A broken invariant of ours is MW_CHECK.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshwright {

/// What kind of "no" an error is. `ExitCode` maps it to the exit code of the command line.
enum class StatusCode {
  kOk,
  kInvalidInput,  ///< malformed or contradictory input: exit 2
  kNotFound,      ///< a file or name that does not exist: exit 2
  kInfeasible,    ///< the answer is no: does not fit, not legal, not proven: exit 1
  kUnsupported,   ///< legal, but outside what this build can do: exit 1
  kRunFailed,     ///< an execution failed (dead rank, device, I/O during a run): exit 3
};

/// Outcome without a value. Messages say where, what was found, what is allowed, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// One entry a problem when several were found at once, in the order of the message; else empty.
  const std::vector<std::string>& problems() const { return problems_; }

  /// Same status with "where: " put before the message; ok stays ok.
  Status WithContext(const std::string& where) const {
    if (ok()) return *this;
    Status status(code_, where + ": " + message_);
    status.problems_ = problems_;
    return status;
  }

  /// kInfeasible for everything that is wrong; ok when nothing is.
  static Status OfProblems(std::vector<std::string> problems) {
    if (problems.empty()) return {};
    std::string text = problems.size() == 1 ? "" : std::to_string(problems.size()) + " problems: ";
    for (size_t i = 0; i < problems.size(); ++i) text += (i > 0 ? "; " : "") + problems[i];
    Status status(StatusCode::kInfeasible, std::move(text));
    status.problems_ = std::move(problems);
    return status;
  }

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::vector<std::string> problems_;
};

inline Status InvalidInput(std::string message) {
  return {StatusCode::kInvalidInput, std::move(message)};
}
inline Status NotFound(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
inline Status Infeasible(std::string message) {
  return {StatusCode::kInfeasible, std::move(message)};
}
inline Status Unsupported(std::string message) {
  return {StatusCode::kUnsupported, std::move(message)};
}
inline Status RunFailed(std::string message) {
  return {StatusCode::kRunFailed, std::move(message)};
}

/// Exit code of the command line for a status: 0 done, 1 the answer is no, 2 bad input, 3 run
/// failed.
inline int ExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInfeasible:
    case StatusCode::kUnsupported:
      return 1;
    case StatusCode::kInvalidInput:
    case StatusCode::kNotFound:
      return 2;
    case StatusCode::kRunFailed:
      return 3;
  }
  return 3;
}

namespace internal {
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line, expression);
  std::abort();
}
}  // namespace internal

/// Aborts when an invariant of ours is broken; never for user input.
#define MW_CHECK(expression)                                                                 \
  do {                                                                                       \
    if (!(expression)) ::meshwright::internal::CheckFailed(__FILE__, __LINE__, #expression); \
  } while (false)

/// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    MW_CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  const T& value() const& {
    MW_CHECK(ok());
    return *value_;
  }
  T& value() & {
    MW_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    MW_CHECK(ok());
    return *std::move(value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define MW_CONCAT_INNER(a, b) a##b
#define MW_CONCAT(a, b) MW_CONCAT_INNER(a, b)

/// Returns the status from the calling function when it is not ok.
#define MW_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                    \
    if (::meshwright::Status mw_status = (expression); !mw_status.ok()) return mw_status; \
  } while (false)

/// `MW_ASSIGN_OR_RETURN(auto x, Function());` returns the error or assigns the value.
#define MW_ASSIGN_OR_RETURN(declaration, expression) \
  MW_ASSIGN_OR_RETURN_INNER(MW_CONCAT(mw_result_, __LINE__), declaration, expression)
#define MW_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) return result.status();                        \
  declaration = std::move(result).value()

}  // namespace meshwright
