// SPDX-License-Identifier: Apache-2.0
#include "guest/entry.h"

#include "gen/errors/error_table.h"
#include "guest/config.h"
#include "guest/log.h"

namespace consort::guest {

void LogFailedCall(const char* call, CUresult result) {
  if (!GetConfig().log_errors || result == CUDA_ERROR_NOT_READY) return;
  const ErrorText* text = FindErrorText(result);
  LogLine("%s: %s", call, text != nullptr ? text->name : "an unknown error");
}

}  // namespace consort::guest
