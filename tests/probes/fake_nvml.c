/* A driver for tests: two GPUs (or FAKE_NVML_CARDS, at most 16) that the real pynvml talks to. Built as libnvidia-ml.so.1; with -DOLD it lacks the newer
 * names. The file named by FAKE_NVML holds "temperature lost hang mismatch", read at every call: lost is the index of a
 * card that fell off the bus (-1: none), hang blocks the utilisation call for ever, mismatch is a replaced driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, IS_LOST = 15, MISMATCH = 18, INVALID = 2 };
typedef struct { int index; } Card;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned version; int sensor; int temperature; } Temperature;
typedef struct {
  unsigned field, scope; long long timestamp, latency; int type, result;
  union { double d; unsigned u; unsigned long long ull; } value;
} Field;

static Card cards[16];
static unsigned count_cards(void) { const char *n = getenv("FAKE_NVML_CARDS"); return n ? atoi(n) : 2; }
static int ecc_calls;
static int temperature, lost, hang, mismatch;

static int state(Card *card) {
  FILE *file = fopen(getenv("FAKE_NVML"), "r");
  temperature = 40, lost = -1, hang = 0, mismatch = 0;
  if (file) {
    if (fscanf(file, "%d %d %d %d", &temperature, &lost, &hang, &mismatch) < 1) temperature = 40;
    fclose(file);
  }
  if (mismatch) return MISMATCH;
  return card && card->index == lost ? IS_LOST : OK;
}
#define CHECK(card) do { int code = state(card); if (code) return code; } while (0)

int fake_ecc_calls(void) { return ecc_calls; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }
int nvmlDeviceGetCount_v2(unsigned *count) { CHECK(NULL); *count = count_cards(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card) {
  if (index >= count_cards()) return INVALID;
  cards[index].index = index;
  *card = &cards[index];
  CHECK(*card);
  return OK;
}
int nvmlDeviceGetName(Card *card, char *name, unsigned size) { CHECK(card); snprintf(name, size, "Fake H100"); return OK; }
int nvmlDeviceGetUUID(Card *card, char *uuid, unsigned size) {
  CHECK(card);
  snprintf(uuid, size, "GPU-00000000-0000-0000-0000-0000000000%02d", card->index);
  return OK;
}
int nvmlDeviceGetSerial(Card *card, char *serial, unsigned size) {
  CHECK(card);
  if (card->index == 1) return NOT_SUPPORTED;
  snprintf(serial, size, "16500000000");
  return OK;
}
int nvmlDeviceGetUtilizationRates(Card *card, Utilization *out) {
  CHECK(card);
  while (hang) pause();
  out->gpu = 75, out->memory = 10;
  return OK;
}
int nvmlDeviceGetMemoryInfo(Card *card, Memory *out) {
  CHECK(card);
  out->total = 80000000000ULL, out->used = 1000, out->free = out->total - out->used;
  return OK;
}
int nvmlDeviceGetTemperature(Card *card, int sensor, unsigned *out) { (void)sensor; CHECK(card); *out = temperature; return OK; }
int nvmlDeviceGetPowerUsage(Card *card, unsigned *milliwatts) { CHECK(card); *milliwatts = 111000; return OK; }
int nvmlDeviceGetClockInfo(Card *card, int kind, unsigned *megahertz) { CHECK(card); *megahertz = kind == 2 ? 2619 : 1980; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Card *card, unsigned long long *out) { CHECK(card); *out = 4; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(Card *card, unsigned long long *out) { CHECK(card); *out = 5000; return OK; }
int nvmlDeviceGetTotalEccErrors(Card *card, int error, int counter, unsigned long long *out) {
  (void)error, (void)counter, (void)out;
  CHECK(card);
  ecc_calls++;
  return NOT_SUPPORTED;
}
int nvmlDeviceGetPcieReplayCounter(Card *card, unsigned *out) { CHECK(card); *out = 6; return OK; }

#ifndef OLD
int nvmlDeviceGetTemperatureV(Card *card, Temperature *out) { CHECK(card); out->temperature = temperature; return OK; }
int nvmlDeviceGetMemoryInfo_v2(Card *card, MemoryV2 *out) {
  CHECK(card);
  out->total = 80000000000ULL, out->reserved = 500, out->used = 2000, out->free = 0;
  return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Card *card, unsigned long long *out) { CHECK(card); *out = 8; return OK; }
int nvmlDeviceGetFieldValues(Card *card, int count, Field *fields) {
  CHECK(card);
  for (int k = 0; k < count; k++) {
    Field *field = &fields[k];
    field->result = OK;
    switch (field->field) {
    case 186: field->type = 1, field->value.u = 345600; break; /* instant power, mW */
    case 82: field->type = 1, field->value.u = 55; break;      /* memory temperature */
    case 83: field->type = 3, field->value.ull = 1ULL << 40; break;
    case 94: field->type = 1, field->value.u = 3; break;
    default: field->result = NOT_SUPPORTED; /* ECC is off on this card */
    }
  }
  return OK;
}
#endif
