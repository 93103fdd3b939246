/** An event as one sentence. Unknown kinds of events show their data. */
import type { FleetEvent } from "@/api/types";
import { duration, humanize } from "@/lib/format";
import type { GlyphName, Tone } from "@/lib/status-styles";
import { nodeEventText } from "./node-event-text";

const SIGNALS: Record<number, string> = {
  1: "SIGHUP",
  2: "SIGINT",
  6: "SIGABRT",
  7: "SIGBUS",
  9: "SIGKILL",
  11: "SIGSEGV",
  15: "SIGTERM",
};

const num = (value: unknown): number | null => (typeof value === "number" ? value : null);
const str = (value: unknown): string | null => (typeof value === "string" && value !== "" ? value : null);

function exitText(data: Record<string, unknown>): string {
  const signal = num(data.signal);
  const code = num(data.exit_code);
  const how =
    signal !== null
      ? `killed by ${SIGNALS[signal] ?? `signal ${signal}`}`
      : code !== null
        ? `exited with code ${code}`
        : "ended";
  const pid = num(data.pid);
  return `Process${pid === null ? "" : ` ${pid}`} ${how}${data.expected === true ? ", as requested" : ""}`;
}

function secondsText(seconds: unknown): string {
  if (typeof seconds === "number") return ` in ${duration(seconds)}`;
  if (typeof seconds !== "object" || seconds === null) return "";
  const total = Object.entries(seconds)
    .filter(([phase]) => phase !== "total")
    .reduce((sum, [, s]) => sum + (typeof s === "number" ? s : 0), 0);
  return ` in ${duration("total" in seconds && typeof seconds.total === "number" ? seconds.total : total)}`;
}

/** Stacks have their own panel; the sentence names the innermost frame. */
function stacksText(data: Record<string, unknown>): string {
  const threads: unknown[] = Array.isArray(data.stacks) ? data.stacks : [];
  if (threads.length === 0) return `No stacks${str(data.problem) ? `: ${data.problem}` : ""}`;
  const { frames } = (threads[0] ?? {}) as { frames?: unknown };
  const innermost = Array.isArray(frames) ? str(frames[0]) : null;
  const count = `${threads.length} ${threads.length === 1 ? "thread" : "threads"}`;
  return `Stacks of ${count}${str(data.tool) ? ` by ${data.tool}` : ""}${innermost ? `: in ${innermost}` : ""}`;
}

export function eventText(event: Pick<FleetEvent, "kind" | "data">): string {
  const { kind, data } = event;
  switch (kind) {
    case "process_exit":
      return exitText(data);
    case "recovery_planned": {
      const plan = data.plan as { chosen?: unknown; explanation?: unknown } | undefined;
      const chosen = str(plan?.chosen);
      return `Plan: ${chosen ? humanize(chosen).toLowerCase() : "no feasible strategy"}${str(plan?.explanation) ? `. ${plan?.explanation}` : ""}`;
    }
    case "action_started":
      return `${humanize(str(data.action) ?? "action")} started${str(data.detail) ? `: ${data.detail}` : ""}`;
    case "action_finished": {
      const how = data.ok === false ? "failed" : "done";
      return `${humanize(str(data.action) ?? "action")} ${how}${secondsText(data.seconds)}${str(data.detail) ? `: ${data.detail}` : ""}`;
    }
    case "recovery_completed": {
      const lost = num(data.steps_lost);
      return `Recovered${secondsText(data.seconds)}${lost === null ? "" : `, ${lost} ${lost === 1 ? "step" : "steps"} lost`}`;
    }
    case "recovery_failed":
      return `Recovery failed${str(data.reason) ? `: ${data.reason}` : ""}`;
    case "recovery_verified": {
      const steps = num(data.steps_committed);
      const digests =
        data.digest_match === true
          ? ", digests agree"
          : data.digest_match === false
            ? ", digests differ"
            : "";
      return `Verified${steps === null ? "" : ` over ${steps} steps`}${digests}`;
    }
    case "job_started":
      return `Job started${Array.isArray(data.command) ? `: ${data.command.join(" ")}` : ""}`;
    case "job_finished": {
      const after = num(data.epoch);
      const why = str(data.reason);
      const how = data.state === "failed" ? "Job failed" : "Job finished";
      return `${how}${after === null ? "" : ` after step ${after}`}${why ? `: ${why}` : ""}`;
    }
    case "stack_dump":
      return stacksText(data);
    case "flight_recorder":
      return `Flight recorder: ${str(data.summary) ?? "no summary"}`;
    case "step_replay_finished":
      return str(data.sentence) ?? "Step replay finished";
    case "speed_check_finished":
      return `Speed check: ${str(data.summary) ?? "finished"}`;
    case "snapshot_corrupted":
      return `Snapshot memory: ${str(data.what) ?? "corruption found"}`;
    case "xid":
    case "sxid":
    case "gpu_lost":
    case "gpu_event":
    case "kernel_fault":
    case "link_down":
    case "link_up":
    case "node_stopping":
    case "node_started":
    case "node_rebooted":
    case "health_report":
    case "probe_unresponsive":
      return nodeEventText(kind, data);
    default: {
      const rest = Object.entries(data).map(
        ([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`,
      );
      return humanize(kind) + (rest.length > 0 ? `: ${rest.join(", ")}` : "");
    }
  }
}

export function eventLook(event: Pick<FleetEvent, "kind" | "data">): { tone: Tone; glyph: GlyphName } {
  switch (event.kind) {
    case "process_exit":
      return event.data.expected === true
        ? { tone: "unknown", glyph: "dot" }
        : { tone: "quarantined", glyph: "cross" };
    case "gpu_lost":
    case "probe_unresponsive":
      if (event.data.cleared === true) return { tone: "healthy", glyph: "check" };
      return event.kind === "gpu_lost"
        ? { tone: "quarantined", glyph: "cross" }
        : { tone: "suspect", glyph: "triangle" };
    case "node_lost":
    case "recovery_failed":
    case "xid":
      return { tone: "quarantined", glyph: "cross" };
    case "sxid":
      return event.data.fatal === false
        ? { tone: "suspect", glyph: "triangle" }
        : { tone: "quarantined", glyph: "cross" };
    case "kernel_fault":
      return event.data.severity === "critical"
        ? { tone: "quarantined", glyph: "cross" }
        : { tone: "suspect", glyph: "triangle" };
    case "health_report":
      if (event.data.healthy === true) return { tone: "healthy", glyph: "check" };
      return event.data.fatal === true
        ? { tone: "quarantined", glyph: "cross" }
        : { tone: "suspect", glyph: "triangle" };
    case "link_down":
    case "gpu_event":
    case "snapshot_corrupted":
      return { tone: "suspect", glyph: "triangle" };
    case "link_up":
      return { tone: "healthy", glyph: "check" };
    case "node_stopping":
    case "node_started":
    case "node_rebooted":
      return { tone: "validating", glyph: "ring" };
    case "stack_dump":
    case "flight_recorder":
    case "speed_check_finished":
      return { tone: "validating", glyph: "bars" };
    case "step_replay_finished":
      return event.data.outcome === "found"
        ? { tone: "quarantined", glyph: "cross" }
        : { tone: "validating", glyph: "bars" };
    case "recovery_planned":
      return { tone: "draining", glyph: "half" };
    case "action_started":
    case "action_finished":
      return { tone: "validating", glyph: "ring" };
    case "recovery_completed":
    case "recovery_verified":
      return { tone: "healthy", glyph: "check" };
    default:
      return { tone: "unknown", glyph: "dot" };
  }
}
