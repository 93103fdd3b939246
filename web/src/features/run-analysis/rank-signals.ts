/** The signals of ranks over steps, and how each is compared with a rank's peers. */
import { duration, percent, quantity } from "@/lib/format";

export type Against = "ratio" | "share";

export interface RankSignal {
  name: string;
  label: string;
  group: "Compute" | "Waiting" | "Host" | "Values and workload";
  unit: string;
  /** "ratio": relative to the peers' median. "share": waits are often zero, so their excess is a ratio of a step. */
  against: Against;
}

const own = (name: string, label: string): RankSignal => ({
  name,
  label,
  group: "Compute",
  unit: "s",
  against: "ratio",
});
const wait = (name: string, label: string, group: RankSignal["group"] = "Waiting"): RankSignal => ({
  name,
  label,
  group,
  unit: "s",
  against: "share",
});
const value = (name: string, label: string): RankSignal => ({
  name,
  label,
  group: "Values and workload",
  unit: "1",
  against: "ratio",
});

export const rankSignals: readonly RankSignal[] = [
  own("compute_time_seconds", "Compute"),
  own("forward_seconds", "Forward"),
  own("backward_seconds", "Backward"),
  own("optimizer_seconds", "Optimizer"),
  own("step_time_seconds", "Step time"),
  wait("data_wait_seconds", "Data wait"),
  wait("communication_wait_seconds", "Communication wait"),
  wait("world_wait_seconds", "Wait, all ranks"),
  wait("dp_wait_seconds", "Wait, data parallel"),
  wait("pp_wait_seconds", "Wait, pipeline"),
  wait("cp_wait_seconds", "Wait, context parallel"),
  wait("ep_wait_seconds", "Wait, expert parallel"),
  wait("tp_wait_seconds", "Wait, tensor parallel"),
  wait("snapshot_blocked_seconds", "Snapshot wait"),
  wait("run_delay_seconds", "Run delay (CPU busy)", "Host"),
  wait("gc_seconds", "Garbage collection", "Host"),
  value("gradient_norm", "Gradient norm"),
  value("tokens", "Tokens"),
  value("sequence_squares", "Squared sequence lengths"),
  value("micro_batches", "Micro-batches"),
];

export const rankSignalNames = rankSignals.map((signal) => signal.name);
export const DEFAULT_SIGNAL = "compute_time_seconds";
export const signalOf = (name: string): RankSignal =>
  rankSignals.find((signal) => signal.name === name) ?? (rankSignals[0] as RankSignal);

export function valueText(signal: RankSignal, value: number | null): string {
  return signal.unit === "s" ? duration(value) : quantity(value, signal.unit);
}

/** Format a deviation: `24% above its peers`, `0.8% of a step below its peers`. */
export function deviationText(against: Against, deviation: number | null): string {
  if (deviation === null || !Number.isFinite(deviation)) return "no peers";
  const size = percent(Math.abs(deviation), Math.abs(deviation) < 0.1 ? 1 : 0);
  const side = deviation >= 0 ? "above" : "below";
  return against === "ratio" ? `${size} ${side} its peers` : `${size} of a step ${side} its peers`;
}
