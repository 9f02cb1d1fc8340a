// SPDX-License-Identifier: Apache-2.0
// What Consort does not do it says: CUDA_ERROR_NOT_SUPPORTED, never success without effect. Only
// for Consort: NVIDIA's driver supports these. Source: this project's rule that nothing pretends to
// succeed; the functions are those that need the GPU's own process or machine (checkpoint of the
// driver, graphics, core dumps).
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using UnsupportedTest = ContextTest;

template <typename Function>
Function Find(const char* name) {
  void* symbol = DriverSymbol(name);
  if (symbol == nullptr) throw MissingFunction{name};
  return reinterpret_cast<Function>(symbol);
}

API_TEST(UnsupportedTest, CheckpointOfTheDriver) {
  SKIP_ON_ORACLE("NVIDIA's driver supports it");
  int thread = 0;
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED,
                Find<CUresult (*)(int, int*)>("cuCheckpointProcessGetRestoreThreadId")(1, &thread));
}

API_TEST(UnsupportedTest, GraphicsInterop) {
  SKIP_ON_ORACLE("NVIDIA's driver supports it");
  CUgraphicsResource resource = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED,
                Find<CUresult (*)(CUgraphicsResource*, unsigned, unsigned)>(
                    "cuGraphicsGLRegisterBuffer")(&resource, 1, 0));
}

API_TEST(UnsupportedTest, EglStreams) {
  SKIP_ON_ORACLE("NVIDIA's driver supports it");
  void* connection = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Find<CUresult (*)(void**, void*)>(
                                              "cuEGLStreamConsumerConnect")(&connection, nullptr));
}

API_TEST(UnsupportedTest, GraphsWorkOrSayThatTheyDoNot) {
  SKIP_ON_ORACLE("NVIDIA's driver supports it");
  CUgraph graph = nullptr;
  const CUresult result = Drv().cuGraphCreate(&graph, 0);
  if (result == CUDA_SUCCESS) {
    EXPECT_NE(graph, nullptr);
    EXPECT_OK(Find<CUresult (*)(CUgraph)>("cuGraphDestroy")(graph));
  } else {
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, result);
    EXPECT_EQ(graph, nullptr);
  }
}

API_TEST(UnsupportedTest, UnknownExportTableIsAnError) {
  const CUuuid nobody = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
  const void* table = nullptr;
  EXPECT_NE(Drv().cuGetExportTable(&table, &nobody), CUDA_SUCCESS);
  EXPECT_EQ(table, nullptr);
}

}  // namespace
}  // namespace consort::tests::api
