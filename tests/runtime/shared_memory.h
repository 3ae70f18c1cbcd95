// Memory that a test shares with the processes that it forks.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "topologies/status.h"

namespace meshwright::testing {

/// Zeroed memory that forked processes share.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MW_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
  }
  ~SharedMemory() { munmap(memory_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::byte* data() const { return memory_; }

 private:
  size_t bytes_;
  std::byte* memory_;
};

}  // namespace meshwright::testing
