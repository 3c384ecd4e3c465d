/* A CUDA driver that has no device: it agrees to everything and writes down what it is asked to launch.

   FAKE_CHIP: compute capability, such as 86. FAKE_SIZES: bytes of each kernel parameter, separated by commas. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUcontext current;
static int chip(void) { const char *told = getenv("FAKE_CHIP"); return told ? atoi(told) : 80; }

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 12090; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int index) { *device = index; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "fake"; return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **text) { *text = "FAKE"; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)0x100; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { *status = 0; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = (CUmodule)0x200; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction f, const CUlaunchConfig *c) { *count = 1; return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  printf("function %s\n", name);
  *function = (CUfunction)0x300;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)data = pointer;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = chip() / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = chip() % 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = chip() == 80 ? 166912 : chip() == 90 ? 232448 : 101376; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    default: *value = 65536;
  }
  return CUDA_SUCCESS;
}

static void tell(const unsigned *grid, const unsigned *block, unsigned shared, void **params) {
  char sizes[1024];
  const char *told = getenv("FAKE_SIZES");
  printf("launch %u %u %u block %u %u %u shared %u:", grid[0], grid[1], grid[2], block[0], block[1], block[2], shared);
  strncpy(sizes, told ? told : "", sizeof sizes - 1);
  int i = 0;
  for (char *size = strtok(sizes, ","); size; size = strtok(NULL, ","), i++) {
    unsigned long long value = 0;
    memcpy(&value, params[i], atoi(size));
    printf(" %llx", value);
  }
  printf("\n");
  fflush(stdout);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra) {
  unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  tell(grid, block, c->sharedMemBytes, params);
  return c->numAttrs ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra) {
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  tell(grid, block, shared, params);
  return CUDA_SUCCESS;
}
