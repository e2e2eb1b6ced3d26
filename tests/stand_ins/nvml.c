/* A stand-in for NVIDIA's management library: as many GPUs as STAND_IN_GPUS says, which draw a constant power.
 *
 * It has the functions that scalestudy/nvml.py calls by nvidia-ml-py, with the signatures of nvml.h. No GPU is behind it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_info;
typedef struct {
  unsigned long long total, free, used;
} memory_info;
typedef struct {
  unsigned int gpu, memory;
} utilisation;

enum { PROCESS_BYTES = 24 }; /* nvmlProcessInfo_t */
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

static unsigned long number(const char *name, unsigned long otherwise) {
  const char *text = getenv(name);
  return text ? strtoul(text, NULL, 10) : otherwise;
}

static int text_to(const char *text, char *buffer, unsigned int length) {
  snprintf(buffer, length, "%s", text);
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) { return getenv("STAND_IN_NO_DRIVER") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = (unsigned int)number("STAND_IN_GPUS", 1);
  return SUCCESS;
}

/* A handle is the index and one: no device is NULL. */
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  if (index >= number("STAND_IN_GPUS", 1)) return NOT_FOUND;
  *device = (void *)(uintptr_t)(index + 1);
  return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *buffer, unsigned int length) {
  const char *name = getenv("STAND_IN_GPU_NAME");
  return text_to(name ? name : "Stand-in GPU", buffer, length);
}

int nvmlDeviceGetUUID(void *device, char *buffer, unsigned int length) {
  char uuid[96];
  snprintf(uuid, sizeof uuid, "GPU-%02u00-stand-in", (unsigned int)(uintptr_t)device - 1);
  return text_to(uuid, buffer, length);
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
  memset(info, 0, sizeof *info);
  info->bus = 0x10 + (unsigned int)(uintptr_t)device - 1;
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return SUCCESS;
}

/* 0 MiB: a GPU that shares the memory of its host, as a GB10 does. */
int nvmlDeviceGetMemoryInfo(void *device, memory_info *memory) {
  if (number("STAND_IN_GPU_MIB", 1) == 0) return NOT_SUPPORTED;
  memory->total = number("STAND_IN_GPU_MIB", 16384) << 20;
  memory->used = 1024ULL << 20;
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, utilisation *rates) {
  rates->gpu = 75;
  rates->memory = 25;
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *processes) {
  unsigned int running = (unsigned int)number("STAND_IN_PROCESSES", 1), room = *count;
  *count = running;
  if (room < running) return INSUFFICIENT_SIZE;
  memset(processes, 0, running * PROCESS_BYTES);
  return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
  *milliwatts = 1000u * (unsigned int)number("STAND_IN_GPU_WATTS", 300);
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *device, unsigned int type, unsigned int *mhz) {
  if (type != 1) return NOT_SUPPORTED;
  *mhz = 1500;
  return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  *reasons = number("STAND_IN_THROTTLE", 0);
  return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  struct timespec now;
  if (getenv("STAND_IN_NO_ENERGY")) return NOT_SUPPORTED;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoules = (unsigned long long)((double)number("STAND_IN_GPU_WATTS", 300) * (now.tv_sec + now.tv_nsec / 1e9) * 1e3);
  return SUCCESS;
}
