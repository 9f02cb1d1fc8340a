// SPDX-License-Identifier: Apache-2.0
#include "host/checkpoint/folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "host/limits.h"

namespace consort::host {
namespace {

namespace fs = std::filesystem;
using Kind = CheckpointChunk::Kind;

std::vector<std::byte> Some(size_t bytes, uint32_t seed) {
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return data;
}

class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() {
    std::string name = (fs::temp_directory_path() / "checkpoint-XXXXXX").string();
    CHECK_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    folder_ = (root_ / "saved").string();
  }
  ~CheckpointFolder() override { fs::remove_all(root_); }

  // What Write puts into a checkpoint that is called `application`.
  static std::vector<std::byte> State(const std::string& application) {
    return Some(300, static_cast<uint32_t>(application.size()));
  }
  absl::Status Write(const std::string& application) const {
    auto writer = CheckpointWriter::Begin(folder_);
    if (!writer.ok()) return writer.status();
    absl::Status status = (*writer)->Add(Kind::kState, 0, State(application));
    status.Update((*writer)->Add(Kind::kContents, 1 << 21, Some(700, 2)));
    if (!status.ok()) return status;
    CheckpointManifest manifest;
    manifest.application = application;
    return (*writer)->Finish(manifest).status();
  }
  // The first thing that is wrong with what is there; else its application.
  absl::StatusOr<std::string> Check() const {
    auto reader = CheckpointReader::Open(folder_);
    if (!reader.ok()) return reader.status();
    const CheckpointManifest& manifest = (*reader)->manifest();
    for (size_t i = 0; i < manifest.chunks.size(); ++i) {
      std::vector<std::byte> data(manifest.chunks[i].bytes);
      const absl::Status read = (*reader)->Read(i, data);
      if (!read.ok()) return read;
      EXPECT_EQ(data, i == 0 ? State(manifest.application) : Some(700, 2));
    }
    return manifest.application;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  fs::path Data() const {
    return fs::path(folder_) /
           ("data-" + IdText((*CheckpointReader::Open(folder_))->manifest().id));
  }

  fs::path root_;
  std::string folder_;
};

TEST_F(CheckpointFolder, GivesBackWhatWasWritten) {
  ASSERT_TRUE(Write("train").ok());
  EXPECT_EQ(*Check(), "train");
  EXPECT_EQ(Files().size(), 2u);
  // Nobody but its owner.
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(Data()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(CheckpointFolder, CutsWhatIsLargeIntoChunks) {
  auto writer = CheckpointWriter::Begin(folder_);
  ASSERT_TRUE(writer.ok());
  const auto large = Some(2 * kCheckpointChunkBytesMax + 5, 1);
  ASSERT_TRUE((*writer)->Add(Kind::kState, 0, large).ok());
  const auto manifest = (*writer)->Finish({});
  ASSERT_TRUE(manifest.ok());
  ASSERT_EQ(manifest->chunks.size(), 3u);
  auto reader = CheckpointReader::Open(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest(), *manifest);
  std::vector<std::byte> back(large.size());
  for (size_t i = 0; i < 3; ++i) {
    const CheckpointChunk& chunk = manifest->chunks[i];
    EXPECT_TRUE((*reader)->Read(i, std::span(back).subspan(chunk.at, chunk.bytes)).ok());
  }
  EXPECT_EQ(back, large);
}

TEST_F(CheckpointFolder, TakesTheNewOneInPlaceOfTheOld) {
  ASSERT_TRUE(Write("one").ok());
  ASSERT_TRUE(Write("three").ok());
  EXPECT_EQ(*Check(), "three");
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(CheckpointFolder, KeepsTheOldOneIfTheNewOneIsNotFinished) {
  ASSERT_TRUE(Write("one").ok());
  const auto before = Files();
  {
    auto writer = CheckpointWriter::Begin(folder_);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Add(Kind::kState, 0, Some(100'000, 7)).ok());
  }
  EXPECT_EQ(Files(), before);
  EXPECT_EQ(*Check(), "one");
}

// As when its process was killed.
TEST_F(CheckpointFolder, PassesOverWhatAStoppedWriterLeft) {
  ASSERT_TRUE(Write("one").ok());
  const std::string other(32, 'a');
  std::ofstream(folder_ + "/data-" + other + ".new") << "half";
  std::ofstream(folder_ + "/data-" + other) << "all, but no manifest";
  std::ofstream(folder_ + "/manifest.new") << "half";
  EXPECT_EQ(*Check(), "one");
  ASSERT_TRUE(Write("three").ok());
  EXPECT_EQ(*Check(), "three");
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(CheckpointFolder, HoldsTheOldOneOrTheNewOneWhereverTheDiskIsFull) {
  ASSERT_TRUE(Write("one").ok());
  const auto one = Files();
  // A file cannot grow beyond the limit, as if the disk were full; without the handler that would
  // be a signal.
  ASSERT_NE(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  size_t refused = 0;
  bool finished = false;
  for (rlim_t bytes = 0; !finished; bytes += 50) {
    const rlimit limit = {bytes, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const absl::Status written = Write("three");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    finished = written.ok();
    if (finished) break;
    ++refused;
    EXPECT_NE(written.message().find(".new: File too large"), std::string::npos) << written;
    EXPECT_EQ(Files(), one) << bytes;
    EXPECT_EQ(*Check(), "one") << bytes;
  }
  EXPECT_GT(refused, 5u);
  EXPECT_EQ(*Check(), "three");
}

TEST_F(CheckpointFolder, IsLockedWhileSomebodyNeedsIt) {
  auto writer = CheckpointWriter::Begin(folder_);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckpointWriter::Begin(folder_).status()));
  ASSERT_TRUE((*writer)->Finish({}).ok());
  UniqueFd lock = (*writer)->TakeLock();
  writer->reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckpointWriter::Begin(folder_).status()));
  EXPECT_TRUE(CheckpointReader::Open(folder_).ok());
  lock.Reset();
  EXPECT_TRUE(CheckpointWriter::Begin(folder_).ok());
}

TEST_F(CheckpointFolder, LeavesOtherPeoplesFilesAlone) {
  fs::create_directory(folder_);
  std::ofstream(folder_ + "/thesis.tex") << "years of work";
  const absl::Status status = CheckpointWriter::Begin(folder_).status();
  EXPECT_EQ(status.message(),
            folder_ + ": it has files that are no checkpoint's, such as thesis.tex");
  EXPECT_EQ(Files(), std::vector<std::string>{"thesis.tex"});
  // A folder that was there stays; one that was not goes.
  fs::remove(folder_ + "/thesis.tex");
  CheckpointWriter::Begin(folder_)->reset();
  EXPECT_TRUE(fs::exists(folder_));
  fs::remove(folder_);
  CheckpointWriter::Begin(folder_)->reset();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(CheckpointFolder, SaysWhatIsMissing) {
  EXPECT_EQ(Check().status().message(), folder_ + ": there is no checkpoint (no file manifest)");
  EXPECT_TRUE(absl::IsNotFound(CheckpointWriter::Begin(root_.string() + "/no/such").status()));
  ASSERT_TRUE(Write("one").ok());
  const fs::path data = Data();
  fs::rename(data, root_ / "elsewhere");
  EXPECT_EQ(Check().status().message(), data.string() + ": it is missing");
  fs::rename(root_ / "elsewhere", data);
  fs::remove(folder_ + "/manifest");
  EXPECT_TRUE(absl::IsNotFound(Check().status()));
}

TEST_F(CheckpointFolder, IsRefusedAtEveryOtherLengthOfItsFiles) {
  ASSERT_TRUE(Write("one").ok());
  for (const fs::path& file : {Data(), fs::path(folder_) / "manifest"}) {
    const fs::path whole = root_ / "whole";
    fs::copy_file(file, whole);
    const auto bytes = fs::file_size(file);
    for (uintmax_t length = 0; length < bytes; ++length) {
      fs::resize_file(file, length);
      EXPECT_FALSE(Check().ok()) << file << " of " << length;
      fs::resize_file(file, 0);
      fs::copy_file(whole, file, fs::copy_options::overwrite_existing);
    }
    fs::resize_file(file, bytes + 1);
    EXPECT_FALSE(Check().ok()) << file;
    fs::copy_file(whole, file, fs::copy_options::overwrite_existing);
    EXPECT_EQ(*Check(), "one");
    fs::remove(whole);
  }
}

// Check compares contents, so that a bit which changes nothing may be another.
TEST_F(CheckpointFolder, NeverGivesOtherContentsForAFlippedBit) {
  ASSERT_TRUE(Write("one").ok());
  const fs::path data = Data();
  const auto bytes = fs::file_size(data);
  size_t taken = 0;
  for (uintmax_t at = 0; at < bytes; ++at) {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char was = static_cast<char>(file.get());
    const auto put = [&](char byte) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
      file.flush();
    };
    put(static_cast<char>(was ^ 1 << at % 8));
    const auto found = Check();
    taken += found.ok();
    if (!found.ok()) {
      EXPECT_NE(found.status().message().find("is damaged: "), std::string::npos);
    }
    put(was);
  }
  EXPECT_LT(taken, bytes / 20);
  EXPECT_EQ(*Check(), "one");
}

// Of the same sizes: what is random is stored as it is.
TEST_F(CheckpointFolder, TellsDataOfAnotherCheckpoint) {
  ASSERT_TRUE(Write("one").ok());
  fs::rename(Data(), root_ / "one");
  ASSERT_TRUE(Write("three").ok());
  const fs::path three = Data();
  ASSERT_EQ(fs::file_size(three), fs::file_size(root_ / "one"));
  fs::rename(root_ / "one", three);
  EXPECT_EQ(Check().status().message(),
            three.string() + ": chunk 1 of 2 is damaged: its checksum is not the manifest's");
}

}  // namespace
}  // namespace consort::host
