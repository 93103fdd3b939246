/** Root causes in plain English, and the ranking of findings by likely root cause. */
import type { Finding, Incident } from "@/api/types";

export type Cause = NonNullable<Incident["cause"]>;

interface CauseLabel {
  label: string;
  about: string;
}

export const causes: Record<Cause, CauseLabel> = {
  faulty_gpu: { label: "Faulty GPU", about: "The GPU hardware" },
  gpu_memory: { label: "GPU memory", about: "HBM of the GPU" },
  gpu_sram: { label: "GPU SRAM", about: "On-chip memory of the GPU" },
  gpu_system_processor: { label: "GPU system processor", about: "The GPU's own controller (GSP)" },
  gpu_thermal: { label: "Heat or power of a GPU", about: "Clocks are reduced" },
  gpu_link: { label: "GPU link", about: "NVLink, NVSwitch or PCIe" },
  silent_corruption: { label: "Silent data corruption", about: "Wrong results without an error" },
  network: { label: "Network", about: "Switch or cable" },
  nic: { label: "NIC", about: "A port or adapter of a host" },
  host: { label: "Host", about: "CPU, memory, chassis, power, kernel" },
  storage: { label: "Storage", about: "Reading data or writing checkpoints" },
  maintenance: { label: "Maintenance", about: "Planned work" },
  software: { label: "Training program", about: "The job's own code" },
  dependency: { label: "Driver, library or service", about: "Software that the job depends on" },
  collective_timeout: { label: "Collective timed out", about: "The reason is unknown" },
  operator: { label: "Operator", about: "Requested by an operator" },
  workload: { label: "Workload", about: "Imbalance, not a fault" },
};

export const causeNames = Object.keys(causes) as Cause[];

/** A newer service may send causes that this dashboard does not know. */
export const causeLabel = (cause: string): CauseLabel =>
  (causes as Record<string, CauseLabel>)[cause] ?? { label: cause.replaceAll("_", " "), about: "" };

/**
 * Findings, most likely root cause first. The service ranks the kinds of an incident; findings of one kind are ordered
 * by severity, then by time, and cleared ones come last.
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
