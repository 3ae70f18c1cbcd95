// A status is not dropped silently.
#include "topologies/status.h"

namespace meshwright {

#ifdef MW_MISUSE
Status Work();
void Caller() {
  Work();
}
#else
Status Work();
Status Caller() {
  return Work();
}
#endif

}  // namespace meshwright
