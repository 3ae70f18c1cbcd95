// Child processes of tests.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>

namespace meshwright::runtime {

/// A forked process that runs `body` and exits with what it returns. Killed when still alive at the
/// end of its scope.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) _exit(body());
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    Wait();
  }

  bool started() const { return pid_ > 0; }
  void Signal(int signal) const { kill(pid_, signal); }
  /// Exit code, or 128 + the signal that ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace meshwright::runtime
