// SPDX-License-Identifier: Apache-2.0
// device/image/image_test_support.h: what nvcc made of testdata/, for the tests of this folder.
#ifndef CONSORT_DEVICE_IMAGE_IMAGE_TEST_SUPPORT_H_
#define CONSORT_DEVICE_IMAGE_IMAGE_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace consort::image {

// A file by its name, such as "printing.fatbin"; one that is not there fails the test.
inline std::string ReadTestText(const std::string& name) {
  std::ifstream file(std::string(CONSORT_IMAGE_TESTDATA) + "/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(text.empty()) << name;
  return text;
}

inline std::vector<std::byte> ReadTestImage(const std::string& name) {
  const std::string text = ReadTestText(name);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_IMAGE_TEST_SUPPORT_H_
