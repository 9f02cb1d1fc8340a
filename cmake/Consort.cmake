# SPDX-License-Identifier: Apache-2.0
# cmake/Consort.cmake: the three kinds of target that this project has.
#
#   consort_library(NAME SRCS a.cc ... DEPS x y)          a static library named NAME
#   consort_test(NAME SRCS a_test.cc ... DEPS x [LABELS])  a GoogleTest program, registered with ctest
#   consort_fuzz(NAME SRCS a_fuzz.cc DEPS x CORPUS dir)    a libFuzzer entry (only with CONSORT_FUZZ=ON)
#   consort_fuzz_seeds(NAME folder target)                 further inputs of it, which that target makes
#
# A consort_test without LABELS has the label `unit`, and the target `unit_tests` builds all of those: the
# sanitizers run them. `fuzz_targets` builds all fuzzers; fuzz_targets.txt in the build folder has a line for
# each of their folders: name, folder; the committed corpus first.
#
# CONSORT_SANITIZE is a -fsanitize= list (address, thread, undefined); the presets set it.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(glog REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
include(GoogleTest)

option(CONSORT_FUZZ "Build the libFuzzer entries (needs clang)" OFF)
set(CONSORT_SANITIZE "" CACHE STRING "-fsanitize= list for every target of ours")
set(CUDA_TOOLKIT_DIR "/usr/local/cuda" CACHE PATH "CUDA Toolkit 13 (headers, nvcc)")

add_library(consort_options INTERFACE)
target_compile_options(consort_options INTERFACE -Wall -Wextra -Werror -fno-omit-frame-pointer)
target_include_directories(consort_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_link_libraries(consort_options INTERFACE Threads::Threads)
if(CONSORT_SANITIZE)
  target_compile_options(consort_options INTERFACE -fsanitize=${CONSORT_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(consort_options INTERFACE -fsanitize=${CONSORT_SANITIZE})
endif()
set(CONSORT_TEST_ENVIRONMENT)
if(CONSORT_SANITIZE STREQUAL thread)
  # The packaged Abseil has no instrumentation; the file says what this adds. First in the link line, so that
  # the dynamic linker finds it before Abseil.
  add_library(consort_tsan_absl SHARED ${CMAKE_SOURCE_DIR}/tools/tsan/absl_synchronization.cc)
  target_compile_options(consort_tsan_absl PRIVATE -Wall -Wextra -Werror)
  target_link_options(consort_tsan_absl PRIVATE -fsanitize=thread)
  target_link_libraries(consort_tsan_absl PRIVATE absl::synchronization absl::time)
  target_link_options(consort_options INTERFACE $<TARGET_FILE:consort_tsan_absl>)
  target_link_libraries(consort_options INTERFACE consort_tsan_absl)  # for the order of building
  set(CONSORT_TEST_ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tools/tsan/suppressions.txt")
endif()
if(CONSORT_FUZZ)
  target_compile_options(consort_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# cuda.h for its types; a system include, so that our warnings do not apply to it.
add_library(consort_cuda_headers INTERFACE)
target_include_directories(consort_cuda_headers SYSTEM INTERFACE ${CUDA_TOOLKIT_DIR}/include)

add_custom_target(unit_tests)
if(CONSORT_FUZZ)
  add_custom_target(fuzz_targets)
  # consort_fuzz appends to it; each configuration starts anew.
  file(WRITE ${CMAKE_BINARY_DIR}/fuzz_targets.txt "")
endif()

function(consort_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE consort_options)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
endfunction()

function(consort_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
    add_dependencies(unit_tests ${name})
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} consort_options GTest::gtest GTest::gmock GTest::gtest_main)
  if(CONSORT_SANITIZE)
    # What is tested is optimised, the test itself is not: that halves the time that instrumented tests take to compile.
    target_compile_options(${name} PRIVATE -O0)
    # They slow programs down 2 to 15 times (documentation of Clang's sanitizers).
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  # One ctest entry a program: starting a process a case costs more than the cases do.
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${CONSORT_TEST_ENVIRONMENT}")
endfunction()

function(consort_fuzz name)
  cmake_parse_arguments(ARG "" "CORPUS" "SRCS;DEPS" ${ARGN})
  if(NOT CONSORT_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} consort_options)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzz_targets ${name})
  file(APPEND ${CMAKE_BINARY_DIR}/fuzz_targets.txt "${name} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS}\n")
endfunction()

function(consort_fuzz_seeds name folder target)
  add_dependencies(${name} ${target})
  file(APPEND ${CMAKE_BINARY_DIR}/fuzz_targets.txt "${name} ${folder}\n")
endfunction()
