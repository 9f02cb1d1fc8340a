# SPDX-License-Identifier: Apache-2.0
# vmsock/check_freestanding.cmake: fails unless the shared object LIBRARY needs libc only, in a version that
# every supported guest has (glibc 2.28), and no initialisers at load time beyond the compiler's own.
#
#   cmake -DNM=nm -DOBJDUMP=objdump -DLIBRARY=libx.so -P check_freestanding.cmake
execute_process(COMMAND ${OBJDUMP} -p ${LIBRARY} OUTPUT_VARIABLE headers COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "NEEDED +[^\n]+" needed "${headers}")
foreach(entry ${needed})
  if(NOT entry MATCHES "NEEDED +(libc\\.so\\.6|libpthread\\.so\\.0|ld-linux-x86-64\\.so\\.2|ld-linux-aarch64\\.so\\.1)$")
    message(SEND_ERROR "needs another library: ${entry}")
  endif()
endforeach()

execute_process(COMMAND ${NM} -D --undefined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+@[^ \n]+" versioned "${symbols}")
list(LENGTH versioned count)
if(count EQUAL 0)
  message(SEND_ERROR "no versioned symbols found: nm's output is not understood")
endif()
foreach(symbol ${versioned})
  if(NOT symbol MATCHES "@+GLIBC_2\\.([0-9]+)(\\.[0-9]+)?$")
    message(SEND_ERROR "not from libc: ${symbol}")
  elseif(CMAKE_MATCH_1 GREATER 28)
    message(SEND_ERROR "newer than glibc 2.28: ${symbol}")
  endif()
endforeach()

execute_process(COMMAND ${NM} ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(symbols MATCHES "(_GLOBAL__sub_I[^\n]*|__cxa_guard_acquire)")
  message(SEND_ERROR "runs code at load time or guards a static: ${CMAKE_MATCH_1}")
endif()
