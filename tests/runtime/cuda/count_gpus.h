// How many GPUs a test has, asked in a child: ranks are forked before anything of CUDA happens.
#pragma once

#include "runtime/gpu_run.h"
#include "tests/runtime/processes.h"

namespace meshwright::runtime {

inline int CountGpus() {
  Child child([] {
    const auto count = VisibleGpus();
    return count.ok() ? *count : 0;
  });
  return child.Wait();
}

}  // namespace meshwright::runtime
