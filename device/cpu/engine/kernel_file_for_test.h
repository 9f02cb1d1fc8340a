// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/kernel_file_for_test.h: a fixture whose parameter is the path of a PTX file
// that a compiler made at build time. Each test has the file's program loaded afresh, and launches
// kernels by name. One thread, as gtest runs it.
#ifndef CONSORT_DEVICE_CPU_ENGINE_KERNEL_FILE_FOR_TEST_H_
#define CONSORT_DEVICE_CPU_ENGINE_KERNEL_FILE_FOR_TEST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/program.h"

namespace consort::cpu {

class KernelFileTest : public testing::TestWithParam<const char*> {
 protected:
  // Threads of the host that run a launch.
  static constexpr int kWorkers = 3;

  void SetUp() override {
    std::ifstream file(GetParam());
    ASSERT_TRUE(file) << GetParam();
    std::stringstream text;
    text << file.rdbuf();
    auto program = Program::Load(text.str());
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = std::move(*program);
  }

  static LaunchShape Shape(uint32_t blocks, uint32_t threads, uint32_t dynamic_shared_bytes = 0) {
    LaunchShape shape;
    shape.grid[0] = blocks;
    shape.block[0] = threads;
    shape.dynamic_shared_bytes = dynamic_shared_bytes;
    return shape;
  }

  // How the launch ended. The arguments have the types of the kernel's parameters, in their order.
  template <typename... Arguments>
  LaunchFault Launch(const std::string& name, const LaunchShape& shape, Arguments... arguments) {
    for (size_t k = 0; k < program_->kernels().size(); ++k) {
      const KernelInfo& kernel = program_->kernels()[k];
      if (kernel.name != name) continue;
      EXPECT_EQ(kernel.params.size(), sizeof...(arguments)) << name;
      if (kernel.params.size() != sizeof...(arguments)) return LaunchFault::kTrap;
      std::vector<uint8_t> buffer(kernel.param_bytes);
      size_t i = 0;
      auto put = [&](auto value) {
        EXPECT_EQ(kernel.params[i].bytes, sizeof(value)) << name;
        std::memcpy(buffer.data() + kernel.params[i].offset, &value, kernel.params[i].bytes);
        ++i;
      };
      (put(arguments), ...);
      return program_->Run(k, shape, buffer.data(), kWorkers);
    }
    ADD_FAILURE() << "no kernel " << name;
    return LaunchFault::kTrap;
  }

  // A launch that has to end well.
  template <typename... Arguments>
  void Run(const std::string& name, const LaunchShape& shape, Arguments... arguments) {
    ASSERT_EQ(Launch(name, shape, arguments...), LaunchFault::kNone) << name;
  }

  std::unique_ptr<Program> program_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_KERNEL_FILE_FOR_TEST_H_
