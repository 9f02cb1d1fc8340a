// SPDX-License-Identifier: Apache-2.0
#include "guest/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "guest/config.h"

namespace consort::guest {

void LogLine(const char* format, ...) {
  if (!GetConfig().log) return;
  char line[1024];
  int used = snprintf(line, sizeof line, "consort: ");
  va_list arguments;
  va_start(arguments, format);
  const int more = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
  va_end(arguments);
  used += more < 0 ? 0 : more;
  if (used > static_cast<int>(sizeof line) - 2) used = sizeof line - 2;
  line[used++] = '\n';
  // Nothing sensible can be done when stderr is closed.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, used);
}

}  // namespace consort::guest
