// SPDX-License-Identifier: Apache-2.0
// Reads through texture objects and writes through surface objects.

extern "C" __global__ void Fetch2D(cudaTextureObject_t texture, const float* x, const float* y,
                                   float* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = tex2D<float>(texture, x[i], y[i]);
}

extern "C" __global__ void FetchLayer(cudaTextureObject_t texture, int layer, float x, float y,
                                      float* out) {
  *out = tex2DLayered<float>(texture, x, y, layer);
}

extern "C" __global__ void FetchLinear(cudaTextureObject_t texture, int first, int* out) {
  out[threadIdx.x] = tex1Dfetch<int>(texture, first + static_cast<int>(threadIdx.x));
}

// Adds `value` to each element of a surface of `width` by `height` words.
extern "C" __global__ void AddTo(cudaSurfaceObject_t surface, int width, int height, int value) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  if (x >= width || y >= height) return;
  int word = 0;
  surf2Dread(&word, surface, x * 4, y);
  surf2Dwrite(word + value, surface, x * 4, y);
}
