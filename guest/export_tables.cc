// SPDX-License-Identifier: Apache-2.0
// guest/export_tables.cc: the private tables that the CUDA runtime and NVIDIA's libraries ask of
// their driver through cuGetExportTable. All are answered here; none needs the host.
//
// A table is an array of 8-byte slots; slot 0 holds its size in bytes, except in context-local
// storage. Slots that no program was seen to call answer CUDA_ERROR_NOT_SUPPORTED and say so once.
// Source: black-box observation of cudart 11.8, 12.4 and 13.0 and of CUDA 13.0's libraries in front
// of a logging library and of driver 580; public descriptions by ZLUDA (dark_api), Lupine, smolvm
// and GX. Sizes are those of driver 580.
#include "guest/export_tables.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/entry.h"
#include "guest/hmac_md2.h"
#include "guest/image.h"
#include "guest/modules.h"
#include "guest/runtime.h"
#include "guest/thread_state.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

using Slot = const void*;
using Word = uint64_t;

template <class Function>
Slot AsSlot(Function* function) {
  return reinterpret_cast<Slot>(function);
}

// A slot that nobody was seen to call.
CUresult UnknownSlot() {
  NoteUnsupported("cuGetExportTable", "a slot of a private table that no program was seen to use");
  return CUDA_ERROR_NOT_SUPPORTED;
}

// ---- CUDART_INTERFACE
// -------------------------------------------------------------------------------

constexpr int kCudartSlots = 13;

// The primary context's handle, without retaining it.
CUresult GetPrimaryContext(CUcontext* context, CUdevice dev) {
  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (dev < 0 || dev >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(runtime->devices[dev].primary_id);
  return CUDA_SUCCESS;
}

// How runtimes before 12.0 load their fat binaries: [1] and [6] take the wrapper, [8] the fat
// binary.
CUresult LoadWrapped(CUmodule* module, const void* wrapper) {
  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;
  if (module == nullptr || wrapper == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return LoadModule(wrapper, JitOptions(), module);
}

CUresult LoadWrappedWithOptions(CUmodule* module, const void* wrapper, void*, void*, unsigned) {
  return LoadWrapped(module, wrapper);
}

CUresult LoadBare(const void* image, CUmodule* module, void*, void*, unsigned) {
  return LoadWrapped(module, image);
}

// The module of a wrapper is gone, after a reset: nothing is kept by wrapper here.
void ForgetWrapper(const void*) {}

// Loads the PTX compilers; the host's driver does so itself.
CUresult LoadCompilers() { return CUDA_SUCCESS; }

// ---- TOOLS_RUNTIME_CALLBACK_HOOKS
// -------------------------------------------------------------------

constexpr int kHooksSlots = 7;

// Words that the runtime tests at each call, indexed by callback id. All zero: no tool is attached.
uint32_t callback_words[1024];
uint32_t other_words[14];

void GetCallbackWords(void** words, size_t* count) {
  *words = callback_words;
  *count = sizeof callback_words / sizeof callback_words[0];
}

void GetOtherWords(void** words, size_t* count) {
  *words = other_words;
  *count = sizeof other_words / sizeof other_words[0];
}

// ---- TOOLS_TLS
// --------------------------------------------------------------------------------------

constexpr int kToolsTlsSlots = 3;

CUresult GetThreadContext(CUcontext* context) {
  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;
  return calls::cuCtxGetCurrent(context);
}

// ---- CONTEXT_LOCAL_STORAGE
// --------------------------------------------------------------------------

constexpr int kLocalSlots = 4;

// All ones stands for the current context, as NULL does.
CUresult LocalContext(CUcontext handle, Context** context) {
  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;
  if (reinterpret_cast<Word>(handle) == ~Word{0}) handle = nullptr;
  return FindContext(handle, context);
}

CUresult PutLocal(CUcontext handle, void* key, void* value,
                  void (*destructor)(CUcontext, void*, void*)) {
  Context* context = nullptr;
  if (CUresult result = LocalContext(handle, &context); result != CUDA_SUCCESS) return result;
  context->locals.Put({key, value, destructor});
  return CUDA_SUCCESS;
}

CUresult RemoveLocal(CUcontext handle, void* key) {
  Context* context = nullptr;
  if (CUresult result = LocalContext(handle, &context); result != CUDA_SUCCESS) return result;
  return context->locals.Remove(key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Called by every function of the runtime.
CUresult GetLocal(void** value, CUcontext handle, void* key) {
  Context* context = nullptr;
  if (CUresult result = LocalContext(handle, &context); result != CUDA_SUCCESS) return result;
  return context->locals.Get(key, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// ---- CONTEXT_CHECKS
// ---------------------------------------------------------------------------------

constexpr int kChecksSlots = 15;

// An ordinary context: flags 0.
CUresult CheckContext(CUcontext, unsigned* flags, void**) {
  *flags = 0;
  return CUDA_SUCCESS;
}

unsigned CheckDriver() { return 0; }

// ---- INTEGRITY_CHECK
// --------------------------------------------------------------------------------

constexpr int kIntegritySlots = 3;

extern Slot cudart_table[];
extern Slot integrity_table[];

// The runtime computes the same and compares: version R + 0 and R + 1 answer a constant, R + 2 a
// keyed hash over process, thread, tables and devices.
CUresult Handshake(uint32_t version, uint64_t unix_seconds, uint8_t out[16]) {
  if (version % 10 < 2) {
    const Word words[2] = {version % 10 == 0 ? 0x3341181C03CB675Cu : 0x1841181C03CB675Cu,
                           0x8ED383AA1F4CD1E8u};
    memcpy(out, words, 16);
    return CUDA_SUCCESS;
  }
  constexpr uint8_t kKey[16] = {0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52,
                                0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F};
  struct Head {
    uint32_t driver;
    uint32_t version;
    uint32_t pid;
    uint32_t thread;
    const void* cudart;
    const void* integrity;
    const void* function;
    uint64_t seconds;
  };
  struct DevicePart {
    uint8_t uuid[16];
    int32_t domain;
    int32_t bus;
    int32_t device;
  };
  static_assert(sizeof(Head) == 48 && sizeof(DevicePart) == 28);
  std::byte message[sizeof(Head) + kDevicesMax * sizeof(DevicePart)];
  const Head head = {kDriverVersion,
                     version,
                     static_cast<uint32_t>(getpid()),
                     static_cast<uint32_t>(pthread_self()),
                     cudart_table,
                     integrity_table,
                     integrity_table[1],
                     unix_seconds};
  memcpy(message, &head, sizeof head);
  size_t bytes = sizeof head;
  const Runtime* runtime = GetRuntime();
  for (int i = 0; runtime != nullptr && i < runtime->device_count; ++i) {
    const wire::DeviceSnapshot& snapshot = runtime->devices[i].snapshot;
    DevicePart part;
    memcpy(part.uuid, snapshot.uuid, sizeof part.uuid);
    part.domain = snapshot.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID];
    part.bus = snapshot.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID];
    part.device = snapshot.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
    memcpy(message + bytes, &part, sizeof part);
    bytes += sizeof part;
  }
  HmacMd2(kKey, message, bytes, out);
  return CUDA_SUCCESS;
}

// ---- CONTEXT_INFO, FUNCTION_INFO and others of the libraries
// ------------------------------------------

constexpr int kContextInfoSlots = 93;
constexpr int kFunctionInfoSlots = 99;
constexpr int kTopologySlots = 17;
constexpr int kLockSlots = 34;
constexpr int kCompileCacheSlots = 7;

CUresult InfoDevice(CUcontext handle, CUdevice* device) {
  return calls::cuCtxGetDevice_v2(device, handle);
}

CUresult InfoId(CUcontext handle, uint64_t* id) {
  Context* context = nullptr;
  if (CUresult result = LocalContext(handle, &context); result != CUDA_SUCCESS) return result;
  *id = context->wire_id;
  return CUDA_SUCCESS;
}

CUresult InfoObject(CUcontext, const void*, void** out) {
  if (out != nullptr) *out = nullptr;
  return CUDA_SUCCESS;
}

// Calls back for each kernel of a module; answers 1, not a CUresult (cuFFT).
int VisitFunctions(CUcontext, CUmodule module, void (*visit)(void*, CUfunction, void*),
                   void* user) {
  unsigned count = 0;
  if (calls::cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS || count == 0) return 1;
  std::vector<CUfunction> functions(count);
  if (calls::cuModuleEnumerateFunctions(functions.data(), count, module) != CUDA_SUCCESS) return 1;
  for (CUfunction function : functions) visit(user, function, module);
  return 1;
}

// Where each SM of the physical GPU lies (cuBLASLt). It goes on without.
CUresult TopologyUnknown() { return CUDA_ERROR_NOT_SUPPORTED; }

// Lock and unlock of an object of the caller's, which is initialised zero; [19] makes an object,
// [21] sets a function pointer at its start. One lock for all callers does what they need.
Mutex private_lock;

CUresult LockObject(void*) {
  private_lock.Lock();
  return CUDA_SUCCESS;
}

CUresult UnlockObject(void*) {
  private_lock.Unlock();
  return CUDA_SUCCESS;
}

CUresult NewObject(void** out) {
  *out = calloc(1, 64);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void* SetObjectFunction(void** object, void* function) {
  *object = function;
  return function;
}

// NVRTC's compile cache: one that never holds anything.
CUresult CacheOpen(void** handle) {
  static char none;
  *handle = &none;
  return CUDA_SUCCESS;
}
CUresult CacheClose(void*) { return CUDA_SUCCESS; }
CUresult CacheFind(void*, Word, void**, unsigned*) { return CUDA_ERROR_NOT_FOUND; }
CUresult CacheStore(void*, Word, const void*, size_t) { return CUDA_SUCCESS; }
CUresult CacheFree(void*) { return CUDA_SUCCESS; }

// ---- the tables
// -------------------------------------------------------------------------------------

Slot cudart_table[kCudartSlots];
Slot hooks_table[kHooksSlots];
Slot tools_tls_table[kToolsTlsSlots];
Slot local_table[kLocalSlots];
Slot checks_table[kChecksSlots];
Slot integrity_table[kIntegritySlots];
Slot context_info_table[kContextInfoSlots];
Slot function_info_table[kFunctionInfoSlots];
Slot topology_table[kTopologySlots];
Slot lock_table[kLockSlots];
Slot compile_cache_table[kCompileCacheSlots];

template <int kSlots>
void Fill(Slot (&table)[kSlots]) {
  for (Slot& slot : table) slot = AsSlot(UnknownSlot);
  table[0] = reinterpret_cast<Slot>(Word{kSlots} * sizeof(Slot));
}

void FillTables() {
  Fill(cudart_table);
  cudart_table[1] = AsSlot(LoadWrapped);
  cudart_table[2] = AsSlot(GetPrimaryContext);
  cudart_table[6] = AsSlot(LoadWrappedWithOptions);
  cudart_table[7] = AsSlot(ForgetWrapper);
  cudart_table[8] = AsSlot(LoadBare);
  cudart_table[12] = AsSlot(LoadCompilers);

  Fill(hooks_table);
  hooks_table[2] = AsSlot(GetCallbackWords);
  hooks_table[6] = AsSlot(GetOtherWords);

  Fill(tools_tls_table);
  tools_tls_table[2] = AsSlot(GetThreadContext);

  local_table[0] = AsSlot(PutLocal);
  local_table[1] = AsSlot(RemoveLocal);
  local_table[2] = AsSlot(GetLocal);
  local_table[3] = nullptr;

  Fill(checks_table);
  checks_table[2] = AsSlot(CheckContext);
  checks_table[3] = AsSlot(CheckDriver);

  Fill(integrity_table);
  integrity_table[1] = AsSlot(Handshake);

  Fill(context_info_table);
  context_info_table[3] = AsSlot(InfoDevice);
  context_info_table[4] = AsSlot(InfoId);
  context_info_table[39] = AsSlot(InfoObject);
  context_info_table[51] = AsSlot(InfoObject);

  Fill(function_info_table);
  function_info_table[7] = AsSlot(VisitFunctions);

  Fill(topology_table);
  topology_table[4] = AsSlot(TopologyUnknown);
  topology_table[13] = AsSlot(TopologyUnknown);

  Fill(lock_table);
  lock_table[19] = AsSlot(NewObject);
  lock_table[21] = AsSlot(SetObjectFunction);
  lock_table[24] = AsSlot(LockObject);
  lock_table[25] = AsSlot(UnlockObject);

  Fill(compile_cache_table);
  compile_cache_table[1] = AsSlot(CacheOpen);
  compile_cache_table[2] = AsSlot(CacheClose);
  compile_cache_table[3] = AsSlot(CacheFind);
  compile_cache_table[4] = AsSlot(CacheStore);
  compile_cache_table[6] = AsSlot(CacheFree);
}

struct TableOf {
  uint8_t uuid[16];
  const Slot* table;
};

const TableOf kTables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     cudart_table},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     hooks_table},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     tools_tls_table},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     local_table},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     checks_table},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     integrity_table},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     context_info_table},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     function_info_table},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
      0xca},
     topology_table},
    {{0x69, 0xa2, 0x8e, 0x9f, 0x24, 0x49, 0x8b, 0x47, 0xb0, 0x30, 0xc5, 0xda, 0x33, 0x0e, 0xa4,
      0xe9},
     lock_table},
    {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3,
      0x28},
     compile_cache_table},
};

pthread_once_t filled = PTHREAD_ONCE_INIT;

}  // namespace

const void* FindExportTable(const uint8_t uuid[16]) {
  pthread_once(&filled, FillTables);
  for (const TableOf& entry : kTables) {
    if (memcmp(entry.uuid, uuid, 16) == 0) return entry.table;
  }
  return nullptr;
}

namespace calls {

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = FindExportTable(reinterpret_cast<const uint8_t*>(pExportTableId->bytes));
  return *ppExportTable != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace calls
}  // namespace consort::guest
