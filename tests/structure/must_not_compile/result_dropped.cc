// A result is not dropped silently.
#include "topologies/status.h"

namespace meshwright {

#ifdef MW_MISUSE
Result<int> Work();
void Caller() {
  Work();
}
#else
Result<int> Work();
bool Caller() {
  return Work().ok();
}
#endif

}  // namespace meshwright
