/** Signals whose values are names, not quantities. */

const NAMES: Record<string, string[]> = {
  gpu_recovery_action: [
    "no action",
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
  gpu_remap_pending: ["no", "pending a reset"],
  gpu_remap_failed: ["no", "a row could not be remapped"],
  gpu_sram_threshold_exceeded: ["no", "over the vendor's threshold"],
};

/** Return the name of a value; a mean between two values has none. */
export function namedValue(signal: string, value: number | null): string | null {
  return value === null ? null : (NAMES[signal]?.[value] ?? null);
}
