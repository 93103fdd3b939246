/** Signals whose values are names, not amounts. Pure. */

const NAMES: Record<string, string[]> = {
  gpu_recovery_action: [
    "nothing to do",
    "reset the GPU",
    "reboot the node",
    "drain its peers",
    "drain and reset",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
  ],
  gpu_fabric_state: ["not supported", "not started", "in progress", "completed"],
  nic_link_up: ["down", "up"],
  clock_synchronized: ["not disciplined", "disciplined"],
  fabric_manager_up: ["down", "up"],
  gpu_remap_pending: ["no", "waits for a reset"],
  gpu_remap_failed: ["no", "a row could not be remapped"],
  gpu_sram_threshold_exceeded: ["no", "over the vendor's threshold"],
};

/** The name of a value, where it has one; a mean between two values has none. */
export function namedValue(signal: string, value: number | null): string | null {
  return value === null ? null : (NAMES[signal]?.[value] ?? null);
}
