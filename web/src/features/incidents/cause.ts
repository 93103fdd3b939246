/** Why, in plain English: categories of root cause, and which finding the service holds for the root. Pure. */
import type { Finding, Incident } from "@/api/types";

export type Cause = NonNullable<Incident["cause"]>;

interface CauseWords {
  label: string;
  about: string;
}

export const causes: Record<Cause, CauseWords> = {
  faulty_gpu: { label: "Faulty GPU", about: "The card itself" },
  gpu_memory: { label: "GPU memory", about: "The card's HBM" },
  gpu_sram: { label: "GPU SRAM", about: "On-chip memory of the card" },
  gpu_system_processor: { label: "GPU system processor", about: "The card's own controller (GSP)" },
  gpu_thermal: { label: "Heat or power of a GPU", about: "Clocks are held down" },
  gpu_link: { label: "GPU link", about: "NVLink, NVSwitch or PCIe" },
  silent_corruption: { label: "Silent data corruption", about: "Wrong results without an error" },
  network: { label: "Network", about: "Switch or cable" },
  nic: { label: "Network card", about: "A host's port or adapter" },
  host: { label: "Host", about: "CPU, memory, chassis, power, kernel" },
  storage: { label: "Storage", about: "Reading data or writing checkpoints" },
  maintenance: { label: "Maintenance", about: "Planned work" },
  software: { label: "Training program", about: "The job's own code" },
  dependency: { label: "Driver, library or service", about: "Software that the job rests on" },
  collective_timeout: { label: "Collective timed out", about: "Why is not known" },
  operator: { label: "Operator", about: "Somebody asked for it" },
  workload: { label: "Workload", about: "Imbalance: nothing is broken" },
};

export const causeNames = Object.keys(causes) as Cause[];

/** The enumeration may grow before this dashboard knows the word. */
export const causeWords = (cause: string): CauseWords =>
  (causes as Record<string, CauseWords>)[cause] ?? { label: cause.replaceAll("_", " "), about: "" };

/**
 * Findings, likeliest root cause first. The ranking is the service's: it keeps an incident's kinds in that order; among
 * findings of one kind the graver, then the earlier leads, and what no longer holds comes last.
 */
export function rankedFindings(incident: Pick<Incident, "kinds">, findings: readonly Finding[]): Finding[] {
  const place = (finding: Finding) => {
    const at = incident.kinds.indexOf(finding.kind);
    return at < 0 ? incident.kinds.length : at;
  };
  return [...findings].sort(
    (a, b) =>
      place(a) - place(b) ||
      Number(b.active) - Number(a.active) ||
      Number(b.severity === "critical") - Number(a.severity === "critical") ||
      a.time - b.time,
  );
}
