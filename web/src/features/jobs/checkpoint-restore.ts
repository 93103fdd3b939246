/** Which step is restored next, and what the deletion of a step changes about it. */
import type { CheckpointStep, Job } from "@/api/types";
import { duration, integer, plural } from "@/lib/format";
import { isUsable, stepsText } from "./checkpoint-model";

type Steps = readonly CheckpointStep[];
type Selects = (step: CheckpointStep) => boolean;

/** From where a restore begins without a step, and the training that is repeated in addition. */
interface Setback {
  from: number;
  to: number | null;
  seconds: number | null;
  quantized: boolean;
}

const servesRecovery: Selects = (step) => isUsable(step) && step.serves_recovery === true;

/** Return the steps as they are for a job that has ended: no recovery uses them. */
export const stepsOf = (job: Job, steps: CheckpointStep[]): CheckpointStep[] =>
  job.finished_at === null ? steps : steps.map((step) => ({ ...step, serves_recovery: null }));

/** Return the steps from which a recovery of the running job and a new start with `--resume` continue. */
export function nextRestores(steps: Steps): { recovery?: CheckpointStep; resume?: CheckpointStep } {
  return { recovery: steps.find(servesRecovery), resume: steps.find(isUsable) };
}

const resumeOption = (quantized: boolean) => `--resume${quantized ? " --accept-quantized" : ""}`;

/** Say from which step a restore continues. */
export function nextRestoreText(steps: Steps): string {
  const { recovery, resume } = nextRestores(steps);
  if (!resume) return "No step of this run can be restored.";
  const start = `${resumeOption(!!resume.quantized)} takes step ${integer(resume.step)}`;
  const quiet = steps.every((step) => step.serves_recovery == null);
  if (recovery === resume)
    return `The next restore from disk takes step ${integer(resume.step)}: a recovery of the job, or a new start with --resume.`;
  if (recovery)
    return `A recovery of the job takes step ${integer(recovery.step)}; a new start with ${start}.`;
  return `A new start with ${start}.${quiet ? "" : " No step of this run serves a recovery of the running job."}`;
}

/** Return the later steps that cannot be read without the step, the oldest first. */
export function unreadableWithout(step: CheckpointStep, steps: Steps): number[] {
  const listed = steps.filter((other) => isUsable(other) && other.bases.includes(step.step));
  const found = new Set([...step.unreadable, ...listed.map((other) => other.step)]);
  return [...found].sort((a, b) => a - b);
}

/** Return how far a restore from the newest of the `serving` steps goes back; undefined: it stays as it is. */
function setbackOf(gone: ReadonlySet<number>, steps: Steps, serving: Selects): Setback | undefined {
  const usable = steps.filter(isUsable);
  let at = usable.findIndex(serving);
  const newest = usable[at];
  if (!newest || !gone.has(newest.step)) return undefined;
  let seconds: number | null = 0;
  for (let step = newest; ; ) {
    seconds = seconds === null || step.seconds_lost === null ? null : seconds + step.seconds_lost;
    const next: CheckpointStep | undefined = usable[++at];
    const isListed = next?.step === step.previous;
    if (!next || !isListed || (serving(next) && !gone.has(next.step)))
      return { from: newest.step, to: step.previous, seconds, quantized: isListed && !!next?.quantized };
    step = next;
  }
}

/** What is lost with a step. */
export interface Deletion {
  later: number[];
  recovery?: Setback;
  resume?: Setback;
}

export function deletionOf(step: CheckpointStep, steps: Steps): Deletion {
  if (!isUsable(step)) return { later: [] };
  const later = unreadableWithout(step, steps);
  const gone = new Set([step.step, ...later]);
  return {
    later,
    recovery: setbackOf(gone, steps, servesRecovery),
    resume: setbackOf(gone, steps, isUsable),
  };
}

/** Return the seconds of training that a deletion costs now, for sorting; unknown is the most. */
export function deletionSeconds({ recovery, resume }: Deletion): number {
  const all = [recovery, resume].filter((setback) => setback !== undefined);
  return Math.max(0, ...all.map((setback) => setback.seconds ?? Number.MAX_VALUE));
}

/** Return what a deletion costs in a few words, for a table. */
export function deletionText(step: CheckpointStep, deletion: Deletion): string {
  const seconds = deletionSeconds(deletion);
  const later = deletion.later.length > 0 ? `, ${plural(deletion.later.length, "later step")}` : "";
  if (!isUsable(step)) return "nothing";
  if (!deletion.recovery && !deletion.resume) return `nothing now${later}`;
  return `${seconds === Number.MAX_VALUE ? "unknown" : duration(seconds)}${later}`;
}

/** Return what a deletion costs, in sentences, beside the other steps of the run. */
export function deletionSentences(step: CheckpointStep, steps: Steps): string[] {
  if (!isUsable(step))
    return ["It is not complete. Nothing is lost with it, unless it is being written now."];
  const { later, recovery, resume } = deletionOf(step, steps);
  const readable =
    later.length > 0
      ? `Later steps that cannot be read without it: ${stepsText(later)}.`
      : "All other steps stay readable.";
  const both = recovery && resume && recovery.from === resume.from && recovery.to === resume.to;
  const costs = both
    ? [setbackText("The next restore", resume)]
    : [
        ...(recovery ? [setbackText("A recovery of the job", recovery)] : []),
        ...(resume ? [setbackText(`A new start with ${resumeOption(resume.quantized)}`, resume)] : []),
      ];
  return [readable, ...(costs.length > 0 ? costs : [keptText(step, steps)])];
}

function setbackText(who: string, { from, to, seconds }: Setback): string {
  const back = to === null ? "from the start of training" : `from step ${integer(to)}`;
  const cost = seconds === null ? "an unknown time" : duration(seconds);
  return `${who} then continues ${back}, not from step ${integer(from)}: ${cost} of training is lost.`;
}

function keptText(step: CheckpointStep, steps: Steps): string {
  const newest = nextRestores(steps).resume;
  return newest && newest.step > step.step
    ? `The next restore still takes step ${integer(newest.step)}. This step counts only if all newer ones are lost.`
    : "The next restore does not need it.";
}
