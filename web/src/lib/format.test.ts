import { describe, expect, it } from "vitest";
import {
  age,
  bytes,
  duration,
  humanize,
  integer,
  MISSING,
  namedNumber,
  percent,
  quantity,
  readable,
  shortId,
  signalLabel,
  tickLabels,
  unitOf,
} from "./format";

describe("duration", () => {
  it.each([
    [0, "0 s"],
    [4.1e-6, "4.10 µs"],
    [0.0124, "12.4 ms"],
    [0.0099999, "10.0 ms"],
    [1.619, "1.62 s"],
    [59.99, "60.0 s"],
    [200, "3 min 20 s"],
    [7500, "2 h 5 min"],
    [36_000, "10 h"],
    [273_600, "3 d 4 h"],
    [-0.18, "−180 ms"],
  ])("%d s reads %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it("shows a missing number as missing, never as zero", () => {
    for (const missing of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) {
      expect(duration(missing)).toBe(MISSING);
      expect(bytes(missing)).toBe(MISSING);
      expect(percent(missing)).toBe(MISSING);
      expect(integer(missing)).toBe(MISSING);
      expect(quantity(missing, "W")).toBe(MISSING);
    }
  });
});

describe("quantity", () => {
  it("reads the units of the signal table", () => {
    expect(quantity(1.83e9, "Hz")).toBe("1.83 GHz");
    expect(quantity(610, "W")).toBe("610 W");
    expect(quantity(61.24, "C")).toBe("61.2 °C");
    expect(quantity(0.9812, "ratio")).toBe("98.1%");
    expect(quantity(6, "bitmask")).toBe("0x6");
    expect(quantity(4_500_000_000, "B", true)).toBe("4.19 GiB/s");
    expect(quantity(1, "1")).toBe("1");
    expect(quantity(56_232_569_846_018, "")).toBe("56232569846018");
    expect(quantity(41_000, "1", true)).toBe("41.0 k/s");
    expect(quantity(5.1e13, "FLOP/s")).toBe("51.0 TFLOP/s");
  });

  it("keeps three digits across magnitudes", () => {
    expect(bytes(999)).toBe("999 B");
    expect(bytes(1024)).toBe("1.00 KiB");
    expect(bytes(16.4 * 2 ** 30)).toBe("16.4 GiB");
    expect(bytes(301 * 2 ** 20)).toBe("301 MiB");
  });

  it("reads a ratio from its name", () => {
    expect(unitOf("cpu_utilization_ratio", "1")).toBe("ratio");
    expect(unitOf("load_1m", "1")).toBe("1");
  });
});

describe("tickLabels", () => {
  it("is as short as possible", () => {
    expect(tickLabels([0, 0.5, 1], "ratio")).toEqual(["0", "50%", "100%"]);
    expect(tickLabels([0, 5, 10], "s")).toEqual(["0", "5 s", "10 s"]);
    expect(tickLabels([100, 200], "W")).toEqual(["100 W", "200 W"]);
  });

  it("never gives two ticks the same label", () => {
    const labels = tickLabels([2.619e9, 2.6195e9, 2.62e9], "Hz");
    expect(new Set(labels).size).toBe(3);
  });

  it("terminates for equal values", () => {
    expect(tickLabels([1, 1], "W")).toEqual(["1 W", "1 W"]);
  });
});

describe("words", () => {
  it("names signals and enumerations", () => {
    expect(signalLabel("gpu_memory_temperature_celsius")).toBe("GPU memory temperature");
    expect(signalLabel("disk_read_bytes_total")).toBe("Disk read");
    expect(signalLabel("network_errors_total")).toBe("Network errors");
    expect(humanize("parity_rebuild")).toBe("Parity rebuild");
    expect(humanize("xid")).toBe("XID");
  });

  it("shows ages in coarse steps", () => {
    expect(age(0.4)).toBe("0 s");
    expect(age(-3)).toBe("0 s");
    expect(age(59.9)).toBe("59 s");
    expect(age(61)).toBe("1 min 1 s");
    expect(age(null)).toBe("never");
  });

  it("shortens IDs to the end that differs", () => {
    expect(shortId("01a1fb21-d64e-7ddc-8a3f-5ab91fd70e4a")).toBe("…1fd70e4a");
    expect(shortId("demo")).toBe("demo");
    expect(integer(18240)).toBe("18\u202f240");
  });
});

describe("signals of node health", () => {
  it("read throttled time as a ratio of time", () => {
    expect(quantity(2.5e8, "ns", true)).toBe("25.0%");
    expect(quantity(2.5e8, "ns")).toBe("250 ms");
    expect(signalLabel("gpu_throttle_thermal_nanoseconds_total")).toBe("GPU throttle thermal");
  });
  it("name rates by their unit", () => {
    expect(quantity(4e11, "bit/s")).toBe("400 Gbit/s");
    expect(quantity(0.25, "1/s")).toBe("0.25/s");
    expect(quantity(2, "state")).toBe("2");
    expect(signalLabel("gpu_nvlink_worst_link_errors_per_second")).toBe("GPU NVLink worst link errors");
    expect(signalLabel("nic_rate_bits_per_second")).toBe("NIC rate");
  });
});

it("shortens only UUIDs in sentences", () => {
  expect(readable("GPU-5c2f7a10-0000-0000-0000-00000000c0de on n1: the GPU-heavy job")).toBe(
    "GPU\u00a0…\u206000c0de on n1: the GPU-heavy job",
  );
});

it("reads the unit of a detector number from its name", () => {
  expect(namedNumber("limit_seconds", 9.4)).toBe("9.40 s");
  expect(namedNumber("noise", 0.013)).toBe("1.3%");
  expect(namedNumber("wait_ratio", 0.021)).toBe("2.1%");
  expect(namedNumber("ratio", 1.24)).toBe("1.24");
  expect(namedNumber("pid", 41_189)).toBe("41189");
  expect(namedNumber("state_bytes", 2048)).toBe("2.00 KiB");
  expect(namedNumber("noise", null)).toBe("–");
});
