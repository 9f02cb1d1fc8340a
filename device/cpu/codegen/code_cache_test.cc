// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/code_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/program.h"

namespace consort::cpu {
namespace {

using testing::Optional;

constexpr uint64_t kBytesMax = 64 * 1024;

class CodeCacheTest : public testing::Test {
 protected:
  CodeCacheTest() {
    std::string name = testing::TempDir() + "consort_code_cache_XXXXXX";
    root_ = mkdtemp(name.data());
    directory_ = root_ + "/a/consort";
  }
  ~CodeCacheTest() override { std::filesystem::remove_all(root_); }

  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      files.push_back(entry.path());
    }
    return files;
  }

  std::string root_;
  std::string directory_;
};

TEST_F(CodeCacheTest, GivesBackWhatWasPutByAnyone) {
  const CodeCache cache(directory_, kBytesMax);
  const std::string key = CodeCache::Key({"text", "version"});
  EXPECT_EQ(cache.Find(key), std::nullopt);
  cache.Put(key, "some code");
  EXPECT_THAT(CodeCache(directory_, kBytesMax).Find(key), Optional(std::string("some code")));
  EXPECT_EQ(cache.Find(CodeCache::Key({"textv", "ersion"})), std::nullopt);
  struct stat info;
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(CodeCacheTest, AnEmptyDirectoryNameTurnsItOff) {
  const CodeCache cache("", kBytesMax);
  cache.Put("key", "data");
  EXPECT_EQ(cache.Find("key"), std::nullopt);
}

TEST_F(CodeCacheTest, DamagedEntriesAreNoEntries) {
  const CodeCache cache(directory_, kBytesMax);
  const std::string key = CodeCache::Key({"x"});
  cache.Put(key, std::string(1000, 'c'));
  const std::filesystem::path path = Files().at(0);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(500).put('d');
  EXPECT_EQ(cache.Find(key), std::nullopt);
  cache.Put(key, std::string(1000, 'c'));
  EXPECT_NE(cache.Find(key), std::nullopt);
  std::filesystem::resize_file(path, 20);
  EXPECT_EQ(cache.Find(key), std::nullopt);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(cache.Find(key), std::nullopt);
}

TEST_F(CodeCacheTest, ADirectoryThatOthersMayWriteToIsNotUsed) {
  const CodeCache cache(directory_, kBytesMax);
  const std::string key = CodeCache::Key({"x"});
  cache.Put(key, "code");
  chmod(directory_.c_str(), 0777);
  EXPECT_EQ(cache.Find(key), std::nullopt);
  cache.Put(CodeCache::Key({"y"}), "code");
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(CodeCacheTest, TheOldestEntriesGoAtTheBound) {
  const CodeCache cache(directory_, kBytesMax);
  auto key = [](int i) { return CodeCache::Key({std::to_string(i)}); };
  const std::string data(kBytesMax / 16 - 64, 'c');
  auto age = [&](int i, int seconds) {
    std::filesystem::last_write_time(
        directory_ + "/" + key(i) + ".code",
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds));
  };
  for (int i = 0; i < 16; ++i) {
    cache.Put(key(i), data);
    age(i, 1000 - i);
  }
  EXPECT_EQ(Files().size(), 16u);
  EXPECT_NE(cache.Find(key(0)), std::nullopt);  // which makes it the youngest
  cache.Put(key(16), data);
  uint64_t bytes = 0;
  for (const auto& file : Files()) bytes += std::filesystem::file_size(file);
  EXPECT_LE(bytes, kBytesMax);
  EXPECT_GE(bytes, kBytesMax / 2);
  EXPECT_NE(cache.Find(key(0)), std::nullopt);
  EXPECT_NE(cache.Find(key(16)), std::nullopt);
  EXPECT_EQ(cache.Find(key(1)), std::nullopt);
  // What alone is more than the bound is not kept.
  cache.Put(key(17), std::string(kBytesMax, 'c'));
  EXPECT_EQ(cache.Find(key(17)), std::nullopt);
}

TEST_F(CodeCacheTest, ReadersSeeWholeEntriesWhileOthersWrite) {
  const std::string key = CodeCache::Key({"x"});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const CodeCache cache(directory_, kBytesMax);
      const std::string mine(static_cast<size_t>(1000 + 3000 * t), static_cast<char>('a' + t));
      for (int i = 0; i < 200; ++i) {
        cache.Put(key, mine);
        const auto found = cache.Find(key);
        if (!found || found->find_first_not_of((*found)[0]) != std::string::npos) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(Files().size(), 1u);
}

// Kernels that lie in the cache run with the variables of their own program.
TEST_F(CodeCacheTest, ProgramsCompileNothingTwice) {
  const char* ptx = R"(
.version 8.4
.target sm_90
.address_size 64
.global .u32 counter = 5;
.visible .entry wide(.param .u64 out)
{
  .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd2, %rd1, %rd2;
  atom.global.add.u32 %r2, [counter], 1;
  ld.global.u32 %r3, [counter];
  add.u32 %r1, %r1, %r3;
  bar.sync 0;
  st.global.u32 [%rd2], %r1;
  ret;
})";
  LoadOptions options;
  options.cache_directory = directory_;
  LaunchShape shapes[2];
  shapes[0].block[0] = 64;
  auto run = [&](const Program& program) {
    for (const LaunchShape& shape : shapes) {
      std::vector<uint32_t> out(shape.block[0]);
      const uint32_t* address = out.data();
      EXPECT_EQ(program.Run(0, shape, &address, 1), LaunchFault::kNone);
      if (shape.block[0] == 1) {
        EXPECT_EQ(out[0], 70u);
      } else {
        EXPECT_EQ(out[63], 63u + 69u);
      }
    }
  };
  auto first = Program::Load(ptx, options);
  ASSERT_TRUE(first.ok()) << first.status();
  run(**first);
  EXPECT_GT((*first)->compilations(), 0u);
  // The first one's variables are elsewhere, and have been changed.
  auto second = Program::Load(ptx, options);
  ASSERT_TRUE(second.ok()) << second.status();
  run(**second);
  EXPECT_EQ((*second)->compilations(), 0u);
  // Damage is found, and repaired by compiling anew.
  for (const auto& file : Files()) std::filesystem::resize_file(file, 60);
  auto third = Program::Load(ptx, options);
  ASSERT_TRUE(third.ok()) << third.status();
  run(**third);
  EXPECT_GT((*third)->compilations(), 0u);
  auto fourth = Program::Load(ptx, options);
  ASSERT_TRUE(fourth.ok()) << fourth.status();
  run(**fourth);
  EXPECT_EQ((*fourth)->compilations(), 0u);
}

}  // namespace
}  // namespace consort::cpu
