// SPDX-License-Identifier: Apache-2.0
// What gpool/store.h promises, of every store.
#include "gpool/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gpool/etcd_store.h"
#include "gpool/etcd_test_support.h"
#include "gpool/local_store.h"

namespace consort::gpool {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// What takes so long has failed.
constexpr absl::Duration kPatience = absl::Seconds(30);
// etcd grants no shorter leases than some two seconds.
constexpr int kShortLease = 2;

// What a watch has told, for a test to wait for.
class Told {
 public:
  std::function<void(const Entries&)> Callback() {
    return [this](const Entries& entries) {
      absl::MutexLock lock(&mutex_);
      latest_ = entries;
      ++calls_;
    };
  }
  // Waits until what was told last is so. False: it never was.
  bool Await(const std::function<bool(const Entries&)>& wanted) {
    absl::MutexLock lock(&mutex_);
    const auto holds = [&] { return calls_ > 0 && wanted(latest_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), kPatience);
  }
  bool AwaitValue(const std::string& key, const std::string& value) {
    return Await([&](const Entries& entries) {
      const auto it = entries.find(key);
      return it != entries.end() && it->second.value == value;
    });
  }
  bool AwaitAbsent(const std::string& key) {
    return Await([&](const Entries& entries) { return !entries.contains(key); });
  }

 private:
  absl::Mutex mutex_;
  Entries latest_;
  int calls_ = 0;
};

std::map<std::string, std::string> Values(const absl::StatusOr<Entries>& entries) {
  std::map<std::string, std::string> values;
  EXPECT_TRUE(entries.ok()) << entries.status();
  if (!entries.ok()) return values;
  for (const auto& [key, entry] : *entries) values[key] = entry.value;
  return values;
}

class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() { server_.reset(); }

  void SetUp() override {
    if (GetParam() == "local") {
      auto store = LocalStore::Open("");
      ASSERT_TRUE(store.ok()) << store.status();
      store_ = *std::move(store);
    } else {
      if (server_ == nullptr) server_ = EtcdServer::Start();
      ASSERT_NE(server_, nullptr);
      auto store = EtcdStore::Connect({{server_->endpoint()}, {}, {}, {}});
      ASSERT_TRUE(store.ok()) << store.status();
      store_ = *std::move(store);
    }
    // Each case has a part of the store for itself.
    prefix_ = absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), "/");
  }

  std::string Key(const std::string& name) const { return prefix_ + name; }
  Revision Put(const std::string& name, const std::string& value, LeaseId lease = 0) {
    const auto revision = store_->Commit({}, {{Key(name), value, lease}});
    EXPECT_TRUE(revision.ok()) << revision.status();
    return revision.ok() ? revision->value_or(0) : 0;
  }
  LeaseId Grant(int seconds) {
    const auto lease = store_->Grant(seconds);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(0);
  }

  static std::unique_ptr<EtcdServer> server_;
  std::unique_ptr<Store> store_;
  std::string prefix_;
};
std::unique_ptr<EtcdServer> StoreTest::server_;

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, ::testing::Values("local", "etcd"),
                         [](const auto& info) { return info.param; });

TEST_P(StoreTest, ListsWhatBeginsWithThePrefixInOrder) {
  Put("b", "2");
  Put("a", std::string("one \0\xc3\xa4\n", 8));
  Put("ab", "");
  ASSERT_TRUE(store_->Commit({}, {{"other/" + prefix_, "x", 0}}).ok());
  EXPECT_THAT(Values(store_->List(prefix_)),
              ElementsAre(Pair(Key("a"), std::string("one \0\xc3\xa4\n", 8)), Pair(Key("ab"), ""),
                          Pair(Key("b"), "2")));
  EXPECT_THAT(Values(store_->List(Key("a"))).size(), 2);
  EXPECT_THAT(Values(store_->List(Key("nothing"))).size(), 0);
}

TEST_P(StoreTest, AKeyKnowsWhenItWasMadeAndLastChanged) {
  const Revision made = Put("k", "1");
  const Revision changed = Put("k", "2");
  EXPECT_GT(changed, made);
  const auto entries = store_->List(Key("k"));
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->at(Key("k")), (KeyValue{"2", made, changed, 0}));
}

TEST_P(StoreTest, ACommitHappensWholeOrNotAtAll) {
  const Revision made = Put("k", "1");
  // One condition of two fails: nothing happens.
  auto commit = store_->Commit({{Key("k"), made}, {Key("absent"), made}},
                               {{Key("k"), "2", 0}, {Key("new"), "1", 0}});
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_FALSE(commit->has_value());
  EXPECT_THAT(Values(store_->List(prefix_)), ElementsAre(Pair(Key("k"), "1")));
  // Both hold: all happens, at one revision.
  commit = store_->Commit({{Key("k"), made}, {Key("absent"), 0}},
                          {{Key("k"), std::nullopt, 0}, {Key("new"), "1", 0}, {Key("b"), "2", 0}});
  ASSERT_TRUE(commit.ok()) << commit.status();
  ASSERT_TRUE(commit->has_value());
  const auto entries = store_->List(prefix_);
  ASSERT_TRUE(entries.ok());
  EXPECT_THAT(Values(entries), ElementsAre(Pair(Key("b"), "2"), Pair(Key("new"), "1")));
  EXPECT_EQ(entries->at(Key("b")).created, **commit);
  EXPECT_EQ(entries->at(Key("new")).created, **commit);
}

TEST_P(StoreTest, AKeyThatWasRemovedAndMadeAgainIsAnother) {
  const Revision made = Put("k", "1");
  ASSERT_TRUE(store_->Commit({}, {{Key("k"), std::nullopt, 0}}).ok());
  Put("k", "1");
  const auto commit = store_->Commit({{Key("k"), made}}, {{Key("k"), "2", 0}});
  ASSERT_TRUE(commit.ok());
  EXPECT_FALSE(commit->has_value());
}

TEST_P(StoreTest, AKeyThatHasChangedSinceFailsItsCondition) {
  const Revision made = Put("k", "1");
  const Revision changed = Put("k", "2");
  auto commit = store_->Commit({{Key("k"), made, made}}, {{Key("k"), "3", 0}});
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_FALSE(commit->has_value());
  commit = store_->Commit({{Key("k"), made, changed}}, {{Key("k"), "3", 0}});
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_TRUE(commit->has_value());
  // Of a key that is not there.
  commit = store_->Commit({{Key("absent"), 0, 0}}, {{Key("absent"), "1", 0}});
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_TRUE(commit->has_value());
}

TEST_P(StoreTest, OfManyWhoWantToMakeAKeyOneDoes) {
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i, &winners] {
      const auto commit =
          store_->Commit({{Key("leader"), 0}}, {{Key("leader"), absl::StrCat(i), 0}});
      ASSERT_TRUE(commit.ok()) << commit.status();
      if (commit->has_value()) ++winners;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

TEST_P(StoreTest, KeysGoWithALeaseThatNobodyKeepsAlive) {
  const LeaseId kept = Grant(kShortLease);
  Put("kept", "1", kept);
  Told told;
  const auto watch = store_->Observe(prefix_, told.Callback());
  // Kept alive for as long as two others last, one after the other.
  for (const char* round : {"first", "second"}) {
    const LeaseId left = Grant(kShortLease);
    Put("left", round, left);
    EXPECT_TRUE(told.AwaitValue(Key("left"), round));
    std::atomic<bool> gone{false};
    std::thread keeper([&] {
      while (!gone) {
        EXPECT_TRUE(store_->KeepAlive(kept).ok());
        absl::SleepFor(absl::Milliseconds(100));
      }
    });
    EXPECT_TRUE(told.AwaitAbsent(Key("left")));
    gone = true;
    keeper.join();
    EXPECT_TRUE(absl::IsNotFound(store_->KeepAlive(left)));
  }
  EXPECT_THAT(Values(store_->List(prefix_)), ElementsAre(Pair(Key("kept"), "1")));
}

TEST_P(StoreTest, ARevokedLeaseIsGoneWithItsKeysAtOnce) {
  const LeaseId lease = Grant(60);
  Put("on", "1", lease);
  Put("off", "1");
  EXPECT_TRUE(store_->Revoke(lease).ok());
  EXPECT_THAT(Values(store_->List(prefix_)), ElementsAre(Pair(Key("off"), "1")));
  EXPECT_TRUE(absl::IsNotFound(store_->KeepAlive(lease)));
  EXPECT_TRUE(store_->Revoke(lease).ok());
  const auto commit = store_->Commit({}, {{Key("late"), "1", lease}});
  EXPECT_TRUE(absl::IsNotFound(commit.status())) << commit.status();
  EXPECT_THAT(Values(store_->List(prefix_)), ElementsAre(Pair(Key("off"), "1")));
}

TEST_P(StoreTest, AKeyCanLeaveItsLease) {
  const LeaseId lease = Grant(60);
  Put("k", "1", lease);
  Put("k", "2");
  EXPECT_TRUE(store_->Revoke(lease).ok());
  EXPECT_THAT(Values(store_->List(prefix_)), ElementsAre(Pair(Key("k"), "2")));
}

TEST_P(StoreTest, AWatchTellsWhatIsThereAndWhatChanges) {
  Put("a", "1");
  Told told;
  auto watch = store_->Observe(prefix_, told.Callback());
  EXPECT_TRUE(told.AwaitValue(Key("a"), "1"));
  Put("b", "1");
  EXPECT_TRUE(told.AwaitValue(Key("b"), "1"));
  for (int i = 0; i < 100; ++i) Put("a", absl::StrCat(i));
  EXPECT_TRUE(told.AwaitValue(Key("a"), "99"));
  ASSERT_TRUE(store_->Commit({}, {{Key("a"), std::nullopt, 0}}).ok());
  EXPECT_TRUE(told.AwaitAbsent(Key("a")));
  // Its callback may use the store: here, to answer.
  Told answer;
  const auto second = store_->Observe(Key("answer"), answer.Callback());
  const auto answering = store_->Observe(Key("question"), [&](const Entries& entries) {
    if (!entries.empty()) Put("answer", entries.begin()->second.value);
  });
  Put("question", "why");
  EXPECT_TRUE(answer.AwaitValue(Key("answer"), "why"));
}

TEST_P(StoreTest, AWatchThatHasEndedTellsNothing) {
  Told other;
  std::atomic<int> calls{0};
  Told told;
  auto watch = store_->Observe(prefix_, [&](const Entries&) { ++calls; });
  const auto second = store_->Observe(prefix_, other.Callback());
  watch.reset();
  const int before = calls;
  Put("a", "1");
  EXPECT_TRUE(other.AwaitValue(Key("a"), "1"));
  EXPECT_EQ(calls, before);
}

// ---- What one of them has beside that.

class LocalStoreFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/store-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/store.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(LocalStoreFile, KeepsWhatHasNoLease) {
  Revision made = 0;
  {
    auto store = LocalStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    const LeaseId lease = *(*store)->Grant(60);
    made = (*store)->Commit({}, {{"k/kept", "1", 0}, {"k/leased", "1", lease}})->value();
  }
  auto store = LocalStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(Values((*store)->List("k/")), ElementsAre(Pair("k/kept", "1")));
  // Revisions go on from where they were: what was made before is not taken for what is made now.
  EXPECT_GT((*store)->Commit({}, {{"k/kept", "2", 0}})->value(), made);
  EXPECT_EQ((*store)->List("k/")->at("k/kept").created, made);
}

TEST_F(LocalStoreFile, RefusesAFileThatIsNotItsOwn) {
  for (const char* text : {"", "[]", "{\"schema\":2,\"revision\":1,\"keys\":{}}",
                           "{\"schema\":1,\"revision\":1,\"keys\":{\"a\":1}}",
                           "{\"schema\":1,\"revision\":1,\"keys\":{\"a\":{\"value\":1}}}"}) {
    std::ofstream(path_) << text;
    EXPECT_TRUE(absl::IsFailedPrecondition(LocalStore::Open(path_).status())) << text;
  }
}

TEST_F(LocalStoreFile, ACommitThatCannotBeKeptDoesNotHappen) {
  auto store = LocalStore::Open(folder_ + "/not/there.json");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->Commit({}, {{"k", "1", 0}}).ok());
  EXPECT_THAT(Values((*store)->List("k")).size(), 0);
}

TEST(EtcdStoreAlone, SaysWhatDoesNotAnswer) {
  const auto nobody = EtcdStore::Connect({{"http://127.0.0.1:1"}, {}, {}, {}});
  EXPECT_TRUE(absl::IsUnavailable(nobody.status())) << nobody.status();
}

TEST(EtcdStoreAlone, GoesOnWithAnotherMemberAndAfterARestart) {
  const auto server = EtcdServer::Start();
  ASSERT_NE(server, nullptr);
  auto store = EtcdStore::Connect({{"http://127.0.0.1:1", server->endpoint()}, {}, {}, {}});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit({}, {{"k/1", "1", 0}}).ok());
  Told told;
  const auto watch = (*store)->Observe("k/", told.Callback());
  EXPECT_TRUE(told.AwaitValue("k/1", "1"));
  server->Kill();
  EXPECT_TRUE(absl::IsUnavailable((*store)->List("k/").status()));
  ASSERT_TRUE(server->Restart());
  EXPECT_THAT(Values((*store)->List("k/")), ElementsAre(Pair("k/1", "1")));
  ASSERT_TRUE((*store)->Commit({}, {{"k/2", "2", 0}}).ok());
  EXPECT_TRUE(told.AwaitValue("k/2", "2"));
}

}  // namespace
}  // namespace consort::gpool
