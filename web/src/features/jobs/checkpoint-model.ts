/** Checkpoints of a job as words and numbers. */
import type { CheckpointStep, Checkpoints, Job } from "@/api/types";
import { bytes, duration, integer, percent, plural } from "@/lib/format";
import { dateTime } from "@/lib/time";

/** Nodes whose uploads fail, of many. */
const MOST_FAILING = 4;

/** A directory that answers is read every few seconds, and reported each half minute. */
export const STALE_SECONDS = 90;

export const isStale = (job: Job, reported: Checkpoints, now: number): boolean =>
  job.finished_at === null && now - reported.time > STALE_SECONDS;

/** Return whether a recovery or a new start can continue from the step. */
const isUsable = (step: CheckpointStep): boolean => step.state === "complete" || step.state === "on_nodes";

export const newestUsable = (steps: readonly CheckpointStep[]): CheckpointStep | undefined =>
  steps.find(isUsable);

export const stepsText = (steps: readonly number[]): string => steps.map(integer).join(", ");

export function levelText(step: CheckpointStep): string {
  const [local, upload] = [step.levels.includes("local"), step.levels.includes("upload")];
  if (local && upload) return "Directory, upload";
  if (upload) return "Upload";
  return local ? "Directory" : "unknown";
}

/** Return the size on disk, and its share of the state that it restores where it is smaller. */
export function sizeText(step: CheckpointStep): string {
  const share = step.full_bytes ? step.disk_bytes / step.full_bytes : 1;
  return bytes(step.disk_bytes) + (share < 0.995 ? ` (${percent(share, 0)})` : "");
}

/** Return how much of a size on disk is parity, for what follows the size. */
export const parityText = (parity: number): string => (parity > 0 ? `, ${bytes(parity)} of it parity` : "");

/** Return how far the values of the step may be from those that were saved. */
export function valuesText(step: CheckpointStep): string {
  const bound = step.quantized;
  if (!bound) return step.state === "complete" ? "the bits that were saved" : "unknown";
  const errors = `${bound.absolute.toPrecision(2)}, or ${percent(bound.relative, 1)} of the value`;
  return `quantized to ${plural(bound.bits, "bit")}, with errors of at most ${errors}`;
}

export const restoreText = (step: CheckpointStep): string =>
  step.restore_seconds === null ? "unknown" : duration(step.restore_seconds);

export const survivesText = (step: CheckpointStep): string => step.survives || "unknown";

const lostText = (step: CheckpointStep): string =>
  step.seconds_lost === null ? "an unknown time" : duration(step.seconds_lost);

/** Return what a deletion costs in a few words, for a table. */
export function deletionText(step: CheckpointStep): string {
  if (!isUsable(step)) return "nothing";
  const later = step.unreadable.length;
  return `${lostText(step)}${later > 0 ? `, ${plural(later, "step")}` : ""}`;
}

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

/** Return who goes back to the step `before`, once `step` is deleted. */
function whoGoesBack(step: CheckpointStep, before: CheckpointStep | undefined): string {
  if (before?.quantized) return "Only a new start with --resume --accept-quantized";
  const started = [step, before].some((one) => one && (one.serves_recovery === false || one.quantized));
  return started ? "Only a new start with --resume" : "A job that needs it";
}

/** Return what a deletion costs, in sentences, beside the other steps of the run. */
export function deletionSentences(step: CheckpointStep, steps: readonly CheckpointStep[]): string[] {
  if (!isUsable(step)) return ["It is not complete: nothing is lost with it."];
  const before = steps.find((other) => other.step === step.previous);
  const back = step.previous === null ? "the start of training" : `step ${integer(step.previous)}`;
  return [
    step.unreadable.length > 0
      ? `Steps that cannot be read without it: ${stepsText(step.unreadable)}.`
      : "All other steps stay readable.",
    `${whoGoesBack(step, before)} goes back to ${back}: ${lostText(step)} of training.`,
  ];
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
