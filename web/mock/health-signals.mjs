// The signals of node health: what throttles, what errs, what the driver advises, what the ports carry.
import { noise, wander } from "./random.mjs";

const SLOW = /ecc_|remap|sram|pcie_(rec|corr|nonf|fatal|gen|width)|nvlink|fabric|recovery_action|power_limit/;

/** Seconds between two readings. */
export const paceOf = (signal) => (SLOW.test(signal.name) ? 10 : 1);

const HOT = (node, device) => node === "rack02-node4" && device === "gpu3";
const LINK = (node, device) => node === "rack01-node6" && device === "gpu6";

const make = (source, name, unit, about, at, counter = false) => ({
  name,
  unit,
  about,
  source,
  kind: counter ? "counter" : "gauge",
  level: 0,
  spread: 0,
  at,
});
const gpu = (...rest) => make("gpu", ...rest);
const host = (...rest) => make("host", ...rest);
const nic = (...rest) => make("nic", ...rest);

const flat = (value) => () => value;
const rare = (name, share, most) => (node, device, t) =>
  noise(name, node, device, Math.floor(t / 30)) > 1 - share ? most * noise(name, node, t) : 0;
const hold = (level, when) => (node, device, t) =>
  when(node, device) ? level * (0.6 + 0.4 * wander(`h${node}${device}`, t, 40)) : 0;

const causes = [
  [
    "power_cap",
    "board power at its limit: normal under load",
    (n, d, t) => 2.2e8 * wander(`p${n}${d}`, t, 60),
  ],
  ["thermal", "a thermal limit, as the driver's policy counts it", hold(3.4e8, HOT)],
  ["software_thermal", "software thermal slowdown", hold(2.9e8, HOT)],
  ["hardware_thermal", "hardware thermal slowdown", flat(0)],
  ["power_brake", "an external power brake asserted by the board or the rack", flat(0)],
  ["sync_boost", "waiting for the slowest of a sync-boost group", flat(0)],
];

export const HEALTH_SIGNALS = [
  host("inodes_used_ratio", "1", "used inodes of the root file system", flat(0.08)),
  host("filesystems_read_only", "1", "local file systems that the kernel turned read-only", flat(0)),
  host("processes_stuck", "1", "processes in state D for ten seconds or longer", flat(0)),
  host(
    "clock_error_seconds",
    "s",
    "the kernel's estimate of its clock's error",
    (n, _d, t) => 2e-5 + 3e-5 * wander(n, t, 90),
  ),
  host("dram_corrected_total", "1", "corrected errors of host memory (EDAC)", rare("dram", 0.002, 1), true),
  ...causes.map(([cause, about, at]) =>
    gpu(`gpu_throttle_${cause}_nanoseconds_total`, "ns", `time with clocks held down by ${about}`, at, true),
  ),
  gpu(
    "gpu_temperature_margin_celsius",
    "C",
    "degrees below the slowdown temperature",
    (n, d, t) => (HOT(n, d) ? 3 : 26) + 4 * wander(`m${n}${d}`, t, 50),
  ),
  gpu("gpu_power_limit_watts", "W", "enforced power limit", flat(700)),
  gpu(
    "gpu_recovery_action",
    "state",
    "NVML field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset",
    (n, d) => (LINK(n, d) ? 1 : 0),
  ),
  gpu("gpu_remap_pending", "1", "1 when rows wait for a reset to be remapped", (n, d) =>
    LINK(n, d) ? 1 : 0,
  ),
  gpu("gpu_remap_failed", "1", "1 when a row could not be remapped", flat(0)),
  gpu("gpu_sram_threshold_exceeded", "1", "1 when SRAM errors passed the vendor's threshold", flat(0)),
  gpu("gpu_pcie_generation", "1", "current PCIe generation: falls at idle to save power", flat(5)),
  gpu("gpu_pcie_width", "1", "current PCIe lanes", flat(16)),
  gpu("gpu_pcie_correctable_errors_total", "1", "correctable PCIe errors", rare("pcie", 0.01, 0.4), true),
  gpu("gpu_pcie_recoveries_total", "1", "PCIe link recoveries (L0 to recovery)", flat(0), true),
  gpu(
    "gpu_pcie_receive_bytes_total",
    "B",
    "bytes received over PCIe",
    (n, d, t) => 3e9 + 4e9 * wander(`r${n}${d}`, t, 20),
    true,
  ),
  gpu("gpu_nvlinks_active", "1", "NVLinks that are up", flat(18)),
  gpu("gpu_nvlink_worst_link_errors_per_second", "1/s", "errors of the worst link", (n, d, t) =>
    LINK(n, d) ? 2.4 + 3 * wander("worst", t, 60) : 0.02 * noise(n, d),
  ),
  gpu(
    "gpu_nvlink_crc_errors_total",
    "1",
    "NVLink CRC errors, all links",
    (n, d, t) => (LINK(n, d) ? 2.6 + 3 * wander("worst", t, 60) : 0),
    true,
  ),
  gpu("gpu_nvlink_recoveries_total", "1", "NVLink recovery events, all links", flat(0), true),
  gpu("gpu_fabric_state", "state", "0 not supported, 1 not started, 2 in progress, 3 completed", flat(3)),
  gpu("gpu_processes", "1", "processes with a compute context", flat(1)),
  nic("nic_link_up", "1", "1 when the port is ACTIVE and its physical state LinkUp", flat(1)),
  nic("nic_rate_bits_per_second", "bit/s", "negotiated rate", flat(4e11)),
  nic(
    "nic_receive_bytes_total",
    "B",
    "bytes received",
    (n, d, t) => 3.2e10 + 9e9 * wander(`x${n}${d}`, t, 25),
    true,
  ),
  nic(
    "nic_transmit_bytes_total",
    "B",
    "bytes sent",
    (n, d, t) => 3.1e10 + 9e9 * wander(`y${n}${d}`, t, 25),
    true,
  ),
  nic("nic_symbol_errors_total", "1", "minor link errors on physical lanes", rare("sym", 0.004, 0.5), true),
  nic("nic_out_of_sequence_total", "1", "RDMA packets out of sequence", rare("oos", 0.02, 0.8), true),
];
