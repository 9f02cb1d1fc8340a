// SPDX-License-Identifier: Apache-2.0
// guest/nvml/stubs.cc: all of NVML's names. Where no other file here defines one, it is the weak
// function below: arguments are of no interest to it, and the caller puts them where it cleans up.
#include "guest/nvml/state.h"

#define NAME(function)                                                              \
  extern "C" __attribute__((weak, visibility("default"))) nvmlReturn_t function() { \
    return consort::nvml::NotSupported(#function);                                  \
  }
#include "guest/nvml/names.def"
