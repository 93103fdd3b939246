/* A simulated NVIDIA driver library for tests and benches: the real pynvml loads it as libnvidia-ml.so.1.
 *
 * Everything it answers stands in the file named by MAINSTAY_FAKE_NVML, which another process may change while this one
 * is inside a call (tests/fakes/fleet.py; words and places in layout.py, from which layout.h is made). Variants:
 * -DR535 lacks the newer names and field numbers, -DAPI13 the deprecated names, -DMINIMAL also the field batch. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "layout.h"

#if defined(MINIMAL)
#define R535
#endif

enum {
  OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9, TIMEOUT = 10,
  IS_LOST = 15, MISMATCH = 18, VERSION = 25, UNKNOWN = 999
};
typedef struct { int card; uint64_t opened; } Handle;
typedef struct { uint64_t cursor, mask[MAX_CARDS]; } EventSet;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned version; int sensor; int temperature; } Temperature;
typedef struct { unsigned version; int margin; } Margin;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } Sram;
typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } Fabric;
typedef struct {
  unsigned version; unsigned char cluster[16]; unsigned status, clique, state, mask; unsigned char summary;
} FabricV;
typedef struct { unsigned version; char guid[16], chassis[16]; unsigned char slot, tray, host, peer, module; } Platform;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Handle *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct {
  unsigned field, scope; long long timestamp, latency; unsigned type, result;
  union { double d; unsigned u; unsigned long long ull; } value;
} Field;

static uint64_t *words;
static uint64_t generation, opened, references;
static int inside;
static Handle handles[8][MAX_CARDS];

#define HEAD(name) (words + HEAD_##name)
#define LOAD(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#define ADD(place, amount) __atomic_add_fetch(place, amount, __ATOMIC_RELAXED)
static uint64_t *card_words(int card) { return words + HEAD_END + (uint64_t)card * CARD_END; }
static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ULL + t.tv_nsec; }
static void rest(uint64_t nanoseconds) {
  struct timespec t = {nanoseconds / 1000000000ULL, nanoseconds % 1000000000ULL};
  nanosleep(&t, NULL);
}

/* Three words make a value; the card's sequence is odd while they are being written. */
static long long grown(int card, uint64_t *place) {
  uint64_t *sequence = card_words(card) + CARD_SEQUENCE;
  for (int patience = 0;; patience++) {
    uint64_t before = LOAD(sequence), number = LOAD(place), rate_bits = LOAD(place + 1), since = LOAD(place + 2);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if ((before % 2 || LOAD(sequence) != before) && patience < 10000) { sched_yield(); continue; }
    double rate;
    memcpy(&rate, &rate_bits, sizeof rate);
    return (long long)number + (rate ? (long long)(rate * (double)(now() - since) * 1e-9) : 0);
  }
}
static long long value(int card, int index) { return grown(card, card_words(card) + CARD_VALUES + 3 * index); }
static long long link_value(int card, int link, int index) {
  return grown(card, card_words(card) + CARD_LINK_VALUES + 3 * (link * LINK_VALUES + index));
}
#define TEXT(card, name) ((const char *)(card_words(card) + CARD_##name))

static int load_state(void) {
  if (words) return OK;
  const char *path = getenv("MAINSTAY_FAKE_NVML");
  int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) return NOT_LOADED;
  void *map = mmap(NULL, 8ULL * WORDS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (map == MAP_FAILED) return NOT_LOADED;
  words = map;
  if (*HEAD(MAGIC) != MAGIC) { words = NULL; return NOT_LOADED; }
  return OK;
}

static void hang_if_told(int function, int card) {
  while (LOAD(HEAD(HANG))) rest(1000000);
  if (card < 0) return;
  for (uint64_t told; (told = LOAD(card_words(card) + CARD_HANG)) && (told == 1 || told == (uint64_t)function + 2);) rest(1000000);
}

/* What every call does first: it is counted, may be slow, may hang and may fail. */
static int check(int function, int card) {
  ADD(HEAD(CALLS) + function, 1);
  ADD(HEAD(LOCKED) + function, LOAD(HEAD(COST) + function));
  uint64_t delay = LOAD(HEAD(DELAY) + function) + (card >= 0 ? LOAD(card_words(card) + CARD_LATENCY) : 0);
  if (delay) rest(delay);
  hang_if_told(function, card);
  if (!references) return UNINITIALIZED;
  if (LOAD(HEAD(UNLOADED))) return NOT_LOADED;
  if (LOAD(HEAD(GENERATION)) != generation) return MISMATCH;
  if (LOAD(HEAD(ERROR))) return LOAD(HEAD(ERROR));
  if (card < 0) return OK;
  uint64_t *own = card_words(card);
  if (LOAD(own + CARD_ERROR)) return LOAD(own + CARD_ERROR);
  return LOAD(own + CARD_CALL_ERRORS + function);
}
static int enter(int function, int card) {
  if (!words) return UNINITIALIZED;
  __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  int code = check(function, card);
  __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  return code;
}
static int enter_handle(int function, Handle *handle) {
  if (!words || !references) return UNINITIALIZED;
  if (!handle || handle->opened != opened) { ADD(HEAD(MISUSE), 1); return INVALID; }
  return enter(function, handle->card);
}
#define ENTER(name) do { int code_ = enter(F_##name, -1); if (code_) return code_; } while (0)
#define ENTER_CARD(name) do { int code_ = enter_handle(F_##name, handle); if (code_) return code_; } while (0)
#define GIVE(name, V) do { ENTER_CARD(name); *out = value(handle->card, V_##V); return OK; } while (0)
#define GIVE_TEXT(name, T) do { \
    ENTER_CARD(name); \
    if (!*TEXT(handle->card, T)) return NOT_SUPPORTED; \
    snprintf(out, size, "%s", TEXT(handle->card, T)); \
    return OK; } while (0)

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int code = load_state();
  if (code) return code;
  ADD(HEAD(CALLS) + F_nvmlInitWithFlags, 1);
  while (LOAD(HEAD(HANG))) rest(1000000);
  if (LOAD(HEAD(UNLOADED))) return NOT_LOADED;
  if (references++) return OK;
  generation = LOAD(HEAD(GENERATION));
  opened++;
  ADD(HEAD(OPENS), 1);
  return OK;
}
int nvmlShutdown(void) {
  if (!words || !references) return UNINITIALIZED;
  ADD(HEAD(CALLS) + F_nvmlShutdown, 1);
  if (__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) ADD(HEAD(MISUSE), 1); /* somebody is still inside a call */
  references--;
  return OK;
}
const char *nvmlErrorString(int code) {
  switch (code) {
  case NOT_SUPPORTED: return "Not Supported";
  case IS_LOST: return "GPU is lost";
  case 16: return "GPU requires reset";
  case MISMATCH: return "Driver/library version mismatch";
  case NOT_LOADED: return "Driver Not Loaded";
  default: return "an error of the simulated driver";
  }
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  ENTER(nvmlSystemGetDriverVersion);
  snprintf(out, size, "%s", (const char *)HEAD(DRIVER));
  return OK;
}
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(nvmlDeviceGetCount_v2); *out = LOAD(HEAD(CARDS)); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
  if (!words) return UNINITIALIZED;
  if (index >= LOAD(HEAD(CARDS))) return INVALID;
  int card = LOAD(HEAD(ORDER) + index);
  int code = enter(F_nvmlDeviceGetHandleByIndex_v2, card);
  if (code) return code;
  *out = &handles[opened % 8][card];
  (*out)->card = card, (*out)->opened = opened;
  return OK;
}

int nvmlDeviceGetName(Handle *handle, char *out, unsigned size) { GIVE_TEXT(nvmlDeviceGetName, NAME); }
int nvmlDeviceGetUUID(Handle *handle, char *out, unsigned size) { GIVE_TEXT(nvmlDeviceGetUUID, UUID); }
int nvmlDeviceGetSerial(Handle *handle, char *out, unsigned size) { GIVE_TEXT(nvmlDeviceGetSerial, SERIAL); }
int nvmlDeviceGetVbiosVersion(Handle *handle, char *out, unsigned size) { GIVE_TEXT(nvmlDeviceGetVbiosVersion, VBIOS); }
int nvmlDeviceGetInforomImageVersion(Handle *handle, char *out, unsigned size) { GIVE_TEXT(nvmlDeviceGetInforomImageVersion, INFOROM); }
int nvmlDeviceGetPciInfo_v3(Handle *handle, Pci *out) {
  ENTER_CARD(nvmlDeviceGetPciInfo_v3);
  memset(out, 0, sizeof *out);
  snprintf(out->bus_id, sizeof out->bus_id, "%s", TEXT(handle->card, PCI));
  snprintf(out->legacy, sizeof out->legacy, "%.12s", TEXT(handle->card, PCI) + 4);
  return OK;
}
static int mode(int function, Handle *handle, int index, unsigned *current, unsigned *pending) {
  int code = enter_handle(function, handle);
  if (code) return code;
  *current = *pending = value(handle->card, index);
  return OK;
}
int nvmlDeviceGetEccMode(Handle *handle, unsigned *current, unsigned *pending) { return mode(F_nvmlDeviceGetEccMode, handle, V_ECC_MODE, current, pending); }
int nvmlDeviceGetMigMode(Handle *handle, unsigned *current, unsigned *pending) { return mode(F_nvmlDeviceGetMigMode, handle, V_MIG_MODE, current, pending); }
int nvmlDeviceGetPersistenceMode(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetPersistenceMode, PERSISTENCE); }
int nvmlDeviceGetTemperatureThreshold(Handle *handle, int kind, unsigned *out) {
  ENTER_CARD(nvmlDeviceGetTemperatureThreshold);
  if (kind > 1) return NOT_SUPPORTED;
  *out = value(handle->card, kind ? V_SLOWDOWN_TEMPERATURE : V_SHUTDOWN_TEMPERATURE);
  return OK;
}
int nvmlDeviceGetUtilizationRates(Handle *handle, Utilization *out) {
  ENTER_CARD(nvmlDeviceGetUtilizationRates);
  out->gpu = value(handle->card, V_UTILIZATION), out->memory = value(handle->card, V_MEMORY_UTILIZATION);
  return OK;
}
int nvmlDeviceGetMemoryInfo(Handle *handle, Memory *out) {
  ENTER_CARD(nvmlDeviceGetMemoryInfo);
  out->total = value(handle->card, V_MEMORY_TOTAL);
  out->used = value(handle->card, V_MEMORY_USED) + value(handle->card, V_MEMORY_RESERVED);
  out->free = out->total - out->used;
  return OK;
}
int nvmlDeviceGetPowerUsage(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetPowerUsage, POWER); }
int nvmlDeviceGetEnforcedPowerLimit(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT); }
int nvmlDeviceGetClockInfo(Handle *handle, int kind, unsigned *out) {
  ENTER_CARD(nvmlDeviceGetClockInfo);
  *out = value(handle->card, kind == 2 ? V_MEMORY_CLOCK : V_SM_CLOCK);
  return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(Handle *handle, unsigned long long *out) { GIVE(nvmlDeviceGetTotalEnergyConsumption, ENERGY); }
int nvmlDeviceGetTotalEccErrors(Handle *handle, int error, int counter, unsigned long long *out) {
  ENTER_CARD(nvmlDeviceGetTotalEccErrors);
  if (!value(handle->card, V_ECC_MODE)) return NOT_SUPPORTED;
  *out = value(handle->card, V_ECC_CORRECTED + 2 * counter + error);
  return OK;
}
int nvmlDeviceGetPcieReplayCounter(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetPcieReplayCounter, PCIE_REPLAYS); }
int nvmlDeviceGetCurrPcieLinkGeneration(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetCurrPcieLinkGeneration, PCIE_GENERATION); }
int nvmlDeviceGetCurrPcieLinkWidth(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetCurrPcieLinkWidth, PCIE_WIDTH); }
int nvmlDeviceGetMaxPcieLinkGeneration(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetMaxPcieLinkGeneration, PCIE_GENERATION_MAX); }
int nvmlDeviceGetMaxPcieLinkWidth(Handle *handle, unsigned *out) { GIVE(nvmlDeviceGetMaxPcieLinkWidth, PCIE_WIDTH_MAX); }
int nvmlDeviceGetRemappedRows(Handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  ENTER_CARD(nvmlDeviceGetRemappedRows);
  if (value(handle->card, V_MIG_MODE)) return NOT_SUPPORTED;
  *corrected = value(handle->card, V_REMAPPED_CORRECTED), *uncorrected = value(handle->card, V_REMAPPED_UNCORRECTED);
  *pending = value(handle->card, V_REMAP_PENDING), *failed = value(handle->card, V_REMAP_FAILED);
  return OK;
}
int nvmlDeviceGetNvLinkState(Handle *handle, unsigned link, unsigned *out) {
  ENTER_CARD(nvmlDeviceGetNvLinkState);
  long long links = value(handle->card, V_LINKS);
  if (!links) return NOT_SUPPORTED;
  if (link >= links) return INVALID;
  *out = link_value(handle->card, link, L_STATE);
  return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(Handle *handle, unsigned link, unsigned kind, unsigned long long *out) {
  ENTER_CARD(nvmlDeviceGetNvLinkErrorCounter);
  if (link >= value(handle->card, V_LINKS)) return INVALID;
  if (kind > 2) return NOT_SUPPORTED;
  *out = link_value(handle->card, link, L_REPLAY + kind);
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *handle, unsigned *count, Process *out) {
  ENTER_CARD(nvmlDeviceGetComputeRunningProcesses_v3);
  unsigned room = *count;
  *count = value(handle->card, V_PROCESSES);
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned k = 0; k < *count; k++) out[k] = (Process){1000 + k, 1 << 20, UINT_MAX, UINT_MAX};
  return OK;
}

#ifndef API13
int nvmlDeviceGetTemperature(Handle *handle, int sensor, unsigned *out) { (void)sensor; GIVE(nvmlDeviceGetTemperature, TEMPERATURE); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle *handle, unsigned long long *out) { GIVE(nvmlDeviceGetCurrentClocksThrottleReasons, REASONS); }
int nvmlDeviceGetGpuFabricInfo(Handle *handle, Fabric *out) {
  ENTER_CARD(nvmlDeviceGetGpuFabricInfo);
  if (!value(handle->card, V_FABRIC_STATE)) return NOT_SUPPORTED;
  memset(out, 0, sizeof *out);
  out->state = value(handle->card, V_FABRIC_STATE), out->status = value(handle->card, V_FABRIC_STATUS);
  return OK;
}
#endif

#ifndef R535
int nvmlDeviceGetTemperatureV(Handle *handle, Temperature *out) {
  ENTER_CARD(nvmlDeviceGetTemperatureV);
  out->temperature = value(handle->card, V_TEMPERATURE);
  return OK;
}
int nvmlDeviceGetMarginTemperature(Handle *handle, Margin *out) {
  ENTER_CARD(nvmlDeviceGetMarginTemperature);
  out->margin = value(handle->card, V_MARGIN);
  return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle *handle, unsigned long long *out) { GIVE(nvmlDeviceGetCurrentClocksEventReasons, REASONS); }
int nvmlDeviceGetSramEccErrorStatus(Handle *handle, Sram *out) {
  ENTER_CARD(nvmlDeviceGetSramEccErrorStatus);
  out->exceeded = value(handle->card, V_SRAM_THRESHOLD_EXCEEDED);
  return OK;
}
int nvmlDeviceGetGpuFabricInfoV(Handle *handle, FabricV *out) {
  ENTER_CARD(nvmlDeviceGetGpuFabricInfoV);
  if (!value(handle->card, V_FABRIC_STATE)) return NOT_SUPPORTED;
  if (out->version != 0x2000024 && out->version != 0x3000028) return VERSION;
  out->state = value(handle->card, V_FABRIC_STATE), out->status = value(handle->card, V_FABRIC_STATUS);
  out->mask = value(handle->card, V_FABRIC_HEALTH_MASK);
  if (out->version == 0x3000028) out->summary = value(handle->card, V_FABRIC_HEALTH_SUMMARY);
  return OK;
}
int nvmlDeviceGetPlatformInfo(Handle *handle, Platform *out) {
  ENTER_CARD(nvmlDeviceGetPlatformInfo);
  if (!*TEXT(handle->card, CHASSIS)) return NOT_SUPPORTED;
  if (out->version != 0x200002c) return VERSION;
  memcpy(out->chassis, TEXT(handle->card, CHASSIS), sizeof out->chassis);
  out->slot = value(handle->card, V_SLOT), out->tray = value(handle->card, V_TRAY);
  out->module = handle->card + 1;
  return OK;
}
#endif

#ifndef MINIMAL
int nvmlDeviceGetMemoryInfo_v2(Handle *handle, MemoryV2 *out) {
  ENTER_CARD(nvmlDeviceGetMemoryInfo_v2);
  if (out->version != 0x2000028) return VERSION;
  out->total = value(handle->card, V_MEMORY_TOTAL), out->reserved = value(handle->card, V_MEMORY_RESERVED);
  out->used = value(handle->card, V_MEMORY_USED), out->free = out->total - out->used - out->reserved;
  return OK;
}

/* Field number to the value that answers it; a link's value when the scope is a link. */
static const struct { int field, index, wide; } CARD_FIELDS[] = {
  {1, V_ECC_MODE, 0}, {3, V_ECC_CORRECTED, 1}, {4, V_ECC_UNCORRECTED, 1}, {5, V_ECC_CORRECTED_AGGREGATE, 1},
  {6, V_ECC_UNCORRECTED_AGGREGATE, 1}, {74, V_THROTTLE_POWER_CAP, 1}, {75, V_THROTTLE_THERMAL, 1},
  {76, V_THROTTLE_SYNC_BOOST, 1}, {82, V_MEMORY_TEMPERATURE, 0}, {83, V_ENERGY, 1}, {91, V_LINKS, 0},
  {94, V_PCIE_REPLAYS, 0}, {142, V_REMAPPED_CORRECTED, 0}, {143, V_REMAPPED_UNCORRECTED, 0}, {144, V_REMAP_PENDING, 0},
  {145, V_REMAP_FAILED, 0}, {169, V_PCIE_RECOVERIES, 0}, {173, V_PCIE_CORRECTABLE, 0}, {179, V_PCIE_NONFATAL, 0},
  {180, V_PCIE_FATAL, 0}, {185, V_POWER, 0}, {186, V_POWER, 0}, {190, V_POWER_LIMIT, 0}, {197, V_PCIE_TRANSMIT_BYTES, 1},
  {198, V_PCIE_RECEIVE_BYTES, 1}, {230, V_RECOVERY_ACTION, 0},
};
static int throttle_index(int card, int number) {
  int base = value(card, V_THROTTLE_BASE);
  return base && number >= base && number < base + 3 ? V_THROTTLE_SOFTWARE_THERMAL + number - base : -1;
}
static int link_index(unsigned field) {
  if (field >= 161 && field <= 163) return L_REPLAY + (int)field - 161;
  if (field == 165) return L_STATE;
  if (field >= 206 && field <= 215) return L_MALFORMED + (int)field - 206;
  if (field == 219) return L_EFFECTIVE_ERRORS;
  return field == 221 ? L_SYMBOL_ERRORS : -1;
}
static void answer(int card, Field *field) {
  unsigned number = field->field;
  field->timestamp = now() / 1000, field->latency = 1, field->result = NOT_SUPPORTED;
#ifdef R535
  if (number >= 200) { field->result = INVALID; return; }
#endif
  if (number >= MAX_FIELDS) { field->result = INVALID; return; }
  uint64_t error = LOAD(card_words(card) + CARD_FIELD_ERRORS + number);
  if (error) { field->result = error; return; }
  int index = throttle_index(card, number);
  if (index >= 0) { field->type = 3, field->value.ull = value(card, index), field->result = OK; return; }
  if ((number >= 251 && number <= 253) || (number >= 269 && number <= 271)) {
    if (value(card, V_SMOOTHING)) field->type = value(card, V_SMOOTHING), field->value.ull = 1, field->result = OK;
    return;
  }
  index = link_index(number);
  if (index >= 0) {
    if (field->scope >= value(card, V_LINKS)) { field->result = INVALID; return; }
    long long number_ = link_value(card, field->scope, index);
    if (index == L_STATE) field->type = 1, field->value.u = number_;
    else field->type = 3, field->value.ull = number_;
    field->result = OK;
    return;
  }
  if (number >= 142 && number <= 145 && value(card, V_MIG_MODE)) return;
  if (number >= 3 && number <= 6 && !value(card, V_ECC_MODE)) return;
  for (unsigned k = 0; k < sizeof CARD_FIELDS / sizeof *CARD_FIELDS; k++) {
    if (CARD_FIELDS[k].field != (int)number) continue;
    long long number_ = value(card, CARD_FIELDS[k].index);
    field->value.ull = 0xAAAAAAAAAAAAAAAAULL; /* a driver need not clear what it does not fill */
    if (CARD_FIELDS[k].wide) field->type = 3, field->value.ull = number_;
    else field->type = 1, field->value.u = number_;
    field->result = OK;
  }
}
int nvmlDeviceGetFieldValues(Handle *handle, int count, Field *fields) {
  ENTER_CARD(nvmlDeviceGetFieldValues);
  if (count <= 0 || !fields) return INVALID;
  for (int k = 0; k < count; k++) answer(handle->card, &fields[k]);
  return OK;
}
#endif

/* Events: a ring that the fleet writes; every set has its own place in it. */
int nvmlDeviceGetSupportedEventTypes(Handle *handle, unsigned long long *out) {
  ENTER_CARD(nvmlDeviceGetSupportedEventTypes);
  *out = LOAD(card_words(handle->card) + CARD_EVENT_MASK);
  return OK;
}
int nvmlEventSetCreate(EventSet **out) {
  ENTER(nvmlEventSetCreate);
  *out = calloc(1, sizeof **out);
  (*out)->cursor = LOAD(HEAD(EVENT_HEAD)); /* what was before is lost */
  return OK;
}
int nvmlDeviceRegisterEvents(Handle *handle, unsigned long long mask, EventSet *set) {
  ENTER_CARD(nvmlDeviceRegisterEvents);
  if (LOAD(HEAD(REGISTER_ERRORS_LEFT))) { ADD(HEAD(REGISTER_ERRORS_LEFT), -1); return LOAD(HEAD(REGISTER_ERROR)); }
  if (mask & ~LOAD(card_words(handle->card) + CARD_EVENT_MASK)) return NOT_SUPPORTED;
  set->mask[handle->card] |= mask;
  return OK;
}
static int next_event(EventSet *set, Event *out) {
  uint64_t head = LOAD(HEAD(EVENT_HEAD));
  if (head - set->cursor > EVENTS) set->cursor = head - EVENTS;
  while (set->cursor < head) {
    uint64_t *e = HEAD(EVENTS) + 5 * (set->cursor++ % EVENTS);
    if (!(set->mask[e[0]] & e[1])) continue;
    *out = (Event){&handles[opened % 8][e[0]], e[1], e[2], e[3], e[4]};
    return 1;
  }
  return 0;
}
int nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned milliseconds) {
  uint64_t until = now() + milliseconds * 1000000ULL;
  ENTER(nvmlEventSetWait_v2);
  __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  int code = TIMEOUT;
  for (;;) {
    uint32_t *bell = (uint32_t *)HEAD(FUTEX), rung = __atomic_load_n(bell, __ATOMIC_ACQUIRE);
    if (LOAD(HEAD(WAIT_ERRORS_LEFT))) {
      ADD(HEAD(WAIT_ERRORS_LEFT), -1);
      uint64_t card = LOAD(HEAD(WAIT_ERROR_CARD));
      out->device = card < MAX_CARDS ? &handles[opened % 8][card] : NULL;
      code = LOAD(HEAD(WAIT_ERROR));
      break;
    }
    if (LOAD(HEAD(UNLOADED))) { code = NOT_LOADED; break; }
    if (LOAD(HEAD(GENERATION)) != generation) { code = MISMATCH; break; }
    if (next_event(set, out)) { code = OK; break; }
    uint64_t t = now();
    if (t >= until) break;
    uint64_t left = until - t < 100000000ULL ? until - t : 100000000ULL; /* a missed bell costs 0.1 s at most */
    struct timespec wait = {0, left};
    syscall(SYS_futex, bell, FUTEX_WAIT, rung, &wait, NULL, 0);
  }
  __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  return code;
}
int nvmlEventSetFree(EventSet *set) { ENTER(nvmlEventSetFree); free(set); return OK; }
