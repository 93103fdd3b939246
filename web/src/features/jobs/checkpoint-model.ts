/** Checkpoints of a job as words and numbers. */
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import { bytes, duration, integer, percent, plural } from "@/lib/format";
import { dateTime } from "@/lib/time";

/** Nodes whose uploads fail, of many. */
const MOST_FAILING = 4;

/** Steps that are named one by one. */
const MOST_STEPS = 4;

/** A directory that answers is read every few seconds, and reported each half minute. */
export const STALE_SECONDS = 90;

export const isStale = (job: Job, reported: Checkpoints, now: number): boolean =>
  job.finished_at === null && now - reported.time > STALE_SECONDS;

/** Return whether a recovery or a new start can continue from the step. */
export const isUsable = (step: CheckpointStep): boolean =>
  step.state === "complete" || step.state === "on_nodes";

/** Return the numbers of a few steps, or how many there are between the first and the last. */
export function stepsText(steps: readonly number[]): string {
  if (steps.length <= MOST_STEPS) return steps.map(integer).join(", ");
  return `${integer(steps[0])} to ${integer(steps.at(-1))} (${integer(steps.length)} steps)`;
}

export function levelText(step: CheckpointStep): string {
  const [local, upload] = [step.levels.includes("local"), step.levels.includes("upload")];
  if (local && upload) return "Directory, upload";
  if (upload) return "Upload";
  return local ? "Directory" : "unknown";
}

/** Return the share of the state that the files of the step are, where they are smaller; otherwise nothing. */
export function shareText(step: CheckpointStep): string {
  const share = step.full_bytes ? step.disk_bytes / step.full_bytes : 1;
  return share < 0.995 ? ` (${percent(share, 0)})` : "";
}

export const sizeText = (step: CheckpointStep): string => bytes(step.disk_bytes) + shareText(step);

/** Return how much of a size on disk is parity, for what follows the size. */
export const parityText = (parity: number): string => (parity > 0 ? `, ${bytes(parity)} of it parity` : "");

/** Return how far the values of the step may be from those that were saved. */
export function valuesText(step: CheckpointStep): string {
  const bound = step.quantized;
  if (!bound) return step.state === "complete" ? "exact: the bits that were saved" : "unknown";
  const errors = `${bound.absolute.toPrecision(2)}, or ${percent(bound.relative, 1)} of the value`;
  return `quantized to ${plural(bound.bits, "bit")}, with errors of at most ${errors}`;
}

export const restoreText = (step: CheckpointStep): string =>
  step.restore_seconds === null ? "unknown" : duration(step.restore_seconds);

/** Say also why the time is not known. */
export function restoreSentence(step: CheckpointStep): string {
  if (step.restore_seconds !== null) return duration(step.restore_seconds);
  const isLocal = step.levels.includes("local");
  return isLocal
    ? "unknown before the first restore from this directory"
    : "unknown: it must be downloaded first";
}

export const survivesText = (step: CheckpointStep): string => step.survives || "unknown";

/** Return what continues from the step: a running job never does from a quantized one of its own run. */
export function usedByText(step: CheckpointStep): string {
  if (!isUsable(step)) return "nothing: it is not complete";
  const start = `--resume${step.quantized ? " --accept-quantized" : ""}`;
  if (step.state === "on_nodes")
    return "a recovery of the running job, or --resume if the step is not encoded";
  if (step.serves_recovery) return `a recovery of the running job, or ${start}`;
  const known = step.serves_recovery === false || step.quantized;
  return known ? `only a new start with ${start}: a running job never goes back to it` : start;
}

/** Return the directory as names and values. */
export function directoryFacts(reported: Checkpoints): { name: string; value: string; mono?: boolean }[] {
  const usable = reported.steps.filter(isUsable);
  const local = reported.steps.filter((step) => step.levels.includes("local"));
  const disk = local.reduce((sum, step) => sum + step.disk_bytes, 0);
  const parity = local.reduce((sum, step) => sum + step.parity_bytes, 0);
  const others = reported.steps.length - usable.length;
  return [
    { name: "Directory", value: reported.directory, mono: true },
    { name: "Upload level", value: reported.upload ?? "none", mono: reported.upload !== null },
    ...(reported.upload_problems ?? []).slice(0, MOST_FAILING).map(({ node, problem, since }) => ({
      name: `Upload fails on ${node}`,
      value: `since ${dateTime(since)}: ${problem}`,
    })),
    { name: "Run", value: reported.run, mono: true },
    {
      name: "Steps",
      value: `${plural(usable.length, "usable step")}${others > 0 ? `, ${integer(others)} other` : ""}, ${bytes(disk)} on disk${parityText(parity)}`,
    },
  ];
}
