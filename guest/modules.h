// SPDX-License-Identifier: Apache-2.0
// guest/modules.h: loading images and looking up what is in them, for the calls of the module
// section and for the private tables of older runtimes.
#ifndef CONSORT_GUEST_MODULES_H_
#define CONSORT_GUEST_MODULES_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guest/call.h"
#include "guest/jit_options.h"
#include "guest/objects.h"

namespace consort::guest {

// Sends an image in pieces, for a request that then names it `image_id`.
CUresult SendImage(Session* session, uint32_t context, std::span<const std::byte> image,
                   uint64_t* image_id);

// The whole file with a NUL after it, which PTX needs; `file_bytes` is its length.
// CUDA_ERROR_FILE_NOT_FOUND. CUDA_ERROR_INVALID_IMAGE: too short to be any image.
CUresult ReadImageFile(const char* path, std::vector<std::byte>* bytes, size_t* file_bytes);

// Loads `image` (see FlattenImage) as a new library. `context`: the one it belongs to, or null for
// a library of no context, which is loaded on the current context's device, or the first.
// `preserved`: what was flattened, if it stays where it is until the unload; else null.
CUresult LoadLibrary(std::vector<std::byte> image, const void* preserved, const JitOptions& options,
                     Context* context, uint64_t* library_id);

// Loads what `code` points at as a module of the current context.
CUresult LoadModule(const void* code, const JitOptions& options, CUmodule* module);

// What stands for `library` in `context`: see Library. Library mutex held.
// CUDA_ERROR_NOT_SUPPORTED: its image was too large to keep.
CUresult InstanceOf(Library* library, Context* context, Library** instance);

// The handle of kernel `name`, which is good in every context.
CUresult GetKernel(Library* library, const char* name, uint64_t* kernel_id);

// Replaces `*kernel` by what stands for it in `context`, or on `device` in whichever context.
CUresult KernelIn(Context* context, Kernel** kernel);
CUresult KernelOn(Device* device, Kernel** kernel);

// Sets an attribute of `kernel` for all contexts of `device`.
CUresult SetKernelAttribute(Kernel* kernel, Device* device, CUfunction_attribute attribute,
                            int value);

// Ends `library` in the tables of this process. Library mutex held.
void ForgetLibrary(Library* library);
// Ends what `context_id`, which is being emptied, has of modules and libraries. Library mutex held.
void ForgetContext(uint64_t context_id);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_MODULES_H_
