// SPDX-License-Identifier: Apache-2.0
// base/inherited_fds.h: descriptors that came through exec, until those who go on with them take
// theirs. What nobody takes is closed. Thread compatible.
#ifndef CONSORT_BASE_INHERITED_FDS_H_
#define CONSORT_BASE_INHERITED_FDS_H_

#include <map>
#include <span>

#include "base/unique_fd.h"

namespace consort {

class InheritedFds {
 public:
  // Owns `descriptors` from here on and makes them close-on-exec. A negative number is none.
  explicit InheritedFds(std::span<const int> descriptors);

  // The one of that number; empty if it is not one of these, or was taken.
  UniqueFd Take(int descriptor);

 private:
  std::map<int, UniqueFd> fds_;
};

}  // namespace consort

#endif  // CONSORT_BASE_INHERITED_FDS_H_
