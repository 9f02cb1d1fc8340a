// SPDX-License-Identifier: Apache-2.0
// tests/programs/hold.h: programs that go on until whoever started them ends their input.
#ifndef TESTS_PROGRAMS_HOLD_H_
#define TESTS_PROGRAMS_HOLD_H_

#include <poll.h>
#include <unistd.h>

namespace programs {

// Whether standard input has ended. A byte of it is read, which is told by false; `wait`: for
// either.
inline bool InputEnded(bool wait = false) {
  pollfd entry = {STDIN_FILENO, POLLIN, 0};
  char byte;
  return poll(&entry, 1, wait ? -1 : 0) > 0 && read(STDIN_FILENO, &byte, 1) == 0;
}

}  // namespace programs

#endif  // TESTS_PROGRAMS_HOLD_H_
