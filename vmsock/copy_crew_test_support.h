// SPDX-License-Identifier: Apache-2.0
// vmsock/copy_crew_test_support.h: crews that tests of jobs run with.
#ifndef CONSORT_VMSOCK_COPY_CREW_TEST_SUPPORT_H_
#define CONSORT_VMSOCK_COPY_CREW_TEST_SUPPORT_H_

#include <string>

#include "vmsock/copy_crew.h"

namespace consort {

struct CrewCase {
  std::string name;
  CopyCrewOptions options;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_COPY_CREW_TEST_SUPPORT_H_
