/** An event of a node's hardware, as one sentence. */
import type { FleetEvent } from "@/api/types";
import { age, humanize } from "@/lib/format";

const num = (value: unknown): number | null => (typeof value === "number" ? value : null);
const str = (value: unknown): string | null => (typeof value === "string" && value !== "" ? value : null);
const tail = (before: string, value: unknown) => (str(value) ? `${before}${value}` : "");

const NOTICES: Record<string, string> = {
  ecc_storm: "Burst of ECC errors",
  dram_retirement: "GPU memory retired",
  poison: "Poisoned memory contained",
};

export function nodeEventText(kind: FleetEvent["kind"], data: Record<string, unknown>): string {
  switch (kind) {
    case "xid":
      return `XID ${data.code ?? "?"}${data.source === "kernel" ? ", reported by the kernel" : ""}${tail(": ", data.text)}`;
    case "sxid": {
      const fatal = data.fatal === true ? "fatal " : data.fatal === false ? "non-fatal " : "";
      const link = num(data.link) === null ? "" : ` on link ${data.link}`;
      return humanize(`${fatal}SXID ${data.code ?? "?"}${link}${tail(": ", data.text)}`);
    }
    case "gpu_lost":
      return data.cleared === true
        ? "The GPU responds again"
        : `The GPU does not respond${tail(": ", data.reason)}`;
    case "gpu_event": {
      const what = str(data.what) ?? "notice";
      return NOTICES[what] ?? humanize(what);
    }
    case "kernel_fault":
      return `${humanize(str(data.fault) ?? "fault")}${tail(": ", data.text)}`;
    case "link_down":
      return `Link down${num(data.since_up) === null ? "" : ` after ${age(num(data.since_up))} up`}`;
    case "link_up":
      return `Link up${num(data.since_down) === null ? "" : ` after ${age(num(data.since_down))} down`}`;
    case "node_stopping":
      return data.reason === "shutdown" ? "Node shutting down" : "Node daemon stopped";
    case "node_started":
      return `Node daemon started${num(data.uptime) === null ? "" : `, ${age(num(data.uptime))} after boot`}`;
    case "node_rebooted":
      return `Node rebooted${num(data.away) === null ? "" : `, not heard for ${age(num(data.away))}`}`;
    case "health_report": {
      const said = data.healthy === true ? "healthy again" : (str(data.message) ?? "unhealthy");
      return `${str(data.source) ?? "Another monitor"}${tail(", ", data.check)}: ${said}`;
    }
    default:
      if (data.cleared === true)
        return `The ${data.sampler ? "sampler" : "node daemon"}${tail(" ", data.sampler)} responds again`;
      return `The ${data.sampler ? "sampler" : "node daemon"}${tail(" ", data.sampler)} does not respond${tail(": ", data.reason)}`;
  }
}
