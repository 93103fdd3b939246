import type { Job } from "@/api/types";
import { bytes } from "@/lib/format";
import { Facts } from "@/ui/facts";
import { Panel } from "@/ui/panel";
import { durabilityFacts, placementFacts, protectionFacts, stateBytes } from "./job-model";

/** The protection and durability of the job. */
export function JobProtection({ job }: { job: Job }) {
  const { total, most } = stateBytes(job);
  const durability = durabilityFacts(job);
  return (
    <div className="flex flex-col gap-4">
      <Panel title="Protection">
        <Facts
          facts={[
            ...protectionFacts(job),
            { name: "State", value: `${bytes(total)} total, at most ${bytes(most)} per rank` },
            ...placementFacts(job),
          ]}
        />
      </Panel>
      {durability.length > 0 && (
        <Panel title="Durability" term="durability">
          <Facts facts={durability} />
        </Panel>
      )}
      <Panel title="Command">
        <pre className="whitespace-pre-wrap break-words font-mono text-ink-2 text-xs leading-5">
          {job.command}
        </pre>
      </Panel>
    </div>
  );
}
