// SPDX-License-Identifier: Apache-2.0
// gpool/etcd_test_support.h: an etcd server of a test's own. Thread compatible.
#ifndef CONSORT_GPOOL_ETCD_TEST_SUPPORT_H_
#define CONSORT_GPOOL_ETCD_TEST_SUPPORT_H_

#include <sys/types.h>

#include <memory>
#include <string>

namespace consort::gpool {

class EtcdServer {
 public:
  // One member, on ports of loopback that were free, its data in a folder of its own. Null, with
  // the reason on stderr, if etcd is not installed or does not come up.
  static std::unique_ptr<EtcdServer> Start();
  // Ends it and removes its data.
  ~EtcdServer();

  // SIGKILL, and the same member again, with what it had on its disk.
  void Kill();
  bool Restart();

  const std::string& endpoint() const { return endpoint_; }  // http://127.0.0.1:PORT

 private:
  EtcdServer() = default;
  bool Spawn();

  std::string folder_;
  std::string endpoint_;
  std::string peer_;
  pid_t pid_ = -1;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_ETCD_TEST_SUPPORT_H_
