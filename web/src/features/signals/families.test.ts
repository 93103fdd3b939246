import { describe, expect, it } from "vitest";
import type { Signal } from "@/api/types";
import { familyOf, inFamilies, signalTitle } from "./families";
import { namedValue } from "./named";

const make = (name: string, source = "gpu", unit = "1"): Signal => ({
  name,
  source,
  unit,
  kind: "gauge",
  about: "",
});

describe("familyOf", () => {
  it.each([
    ["gpu_throttle_thermal_nanoseconds_total", "gpu", "throttle"],
    ["gpu_temperature_celsius", "gpu", "heat"],
    ["gpu_power_limit_watts", "gpu", "heat"],
    ["gpu_nvlink_recoveries_total", "gpu", "nvlink"],
    ["gpu_fabric_health_mask", "gpu", "nvlink"],
    ["gpu_pcie_recoveries_total", "gpu", "pcie"],
    ["gpu_recovery_action", "gpu", "driver"],
    ["gpu_remapped_rows_corrected_total", "gpu", "memory"],
    ["gpu_utilization_ratio", "gpu", "load"],
    ["cpu_utilization_ratio", "host", "host"],
    ["oom_kills_total", "host", "host_faults"],
    ["nic_symbol_errors_total", "nic", "port_errors"],
    ["nic_rate_bits_per_second", "nic", "port_traffic"],
  ])("%s of %s is %s", (name, source, family) => {
    expect(familyOf({ name, source })).toBe(family);
  });

  it("has no family for signals of ranks", () => {
    expect(familyOf({ name: "loss", source: "rank" })).toBeNull();
  });
});

describe("inFamilies", () => {
  it("omits empty families and keeps every signal once", () => {
    const signals = [make("load_1m", "host"), make("gpu_power_watts"), make("gpu_pcie_width")];
    const found = inFamilies(signals);
    expect(found.map((family) => family.id)).toEqual(["heat", "pcie", "host"]);
    expect(found.flatMap((family) => family.signals)).toHaveLength(3);
  });
});

it("separates signals of the same name by unit", () => {
  const used = make("memory_used_bytes", "host", "B");
  const share = make("memory_used_ratio", "host");
  expect(signalTitle(used, [used, share])).toBe("Memory used, B");
  expect(signalTitle(share, [used, share])).toBe("Memory used, ratio");
  expect(signalTitle(used, [used])).toBe("Memory used");
});

it("names values that are not quantities", () => {
  expect(namedValue("gpu_recovery_action", 1)).toBe("reset the GPU");
  expect(namedValue("gpu_recovery_action", 0.5)).toBeNull();
  expect(namedValue("gpu_power_watts", 1)).toBeNull();
  expect(namedValue("nic_link_up", null)).toBeNull();
});
