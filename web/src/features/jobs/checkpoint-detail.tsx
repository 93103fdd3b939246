import type { CheckpointStep } from "@/api/types";
import { bytes, integer, plural } from "@/lib/format";
import { checkpointStep, statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { type Fact, Facts } from "@/ui/facts";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import {
  isUsable,
  levelText,
  parityText,
  restoreSentence,
  sizeText,
  stepsText,
  survivesText,
  usedByText,
  valuesText,
} from "./checkpoint-model";
import { deletionSentences } from "./checkpoint-restore";

/** All that is known of one step, beside the other steps of its run. */
export function CheckpointDetail({
  step,
  steps,
}: {
  step: CheckpointStep;
  steps: readonly CheckpointStep[];
}) {
  return (
    <Panel
      title={`Step ${integer(step.step)}`}
      aside={<StatePill look={statusStyleOf(checkpointStep, step.state)} />}
    >
      <Facts facts={factsOf(step)} />
      <h3 className="mt-4 mb-1 font-semibold text-ink text-sm">
        If you delete it{step.levels.length > 1 && " at both levels"}
      </h3>
      {deletionSentences(step, steps).map((line) => (
        <p key={line} className="text-ink-2 text-sm">
          {withOptions(line)}
        </p>
      ))}
    </Panel>
  );
}

/** Keep each command-line option of a text on one line. */
const withOptions = (text: string) =>
  text.split(/(--[a-z-]+)/).map((part) =>
    part.startsWith("--") ? (
      <span key={part} className="whitespace-nowrap">
        {part}
      </span>
    ) : (
      part
    ),
  );

function factsOf(step: CheckpointStep): Fact[] {
  const size = `${sizeText(step)}${parityText(step.parity_bytes)}, ${plural(step.ranks, "rank")}`;
  return [
    ...(step.problem ? [{ name: "Problem", value: step.problem }] : []),
    ...(step.time === null ? [] : [{ name: "Completed", value: <Age at={step.time} /> }]),
    { name: "Size on disk", value: size },
    ...(isUsable(step) ? restoreFacts(step) : []),
    { name: "Level", value: levelText(step) },
    { name: "Held by", value: nodesText(step) },
    { name: "Pinned", value: step.pinned ? "yes: no retention policy removes it" : "no" },
    { name: "Built on", value: stepsText(step.bases) || "no other step" },
  ];
}

/** What only a step has that can be restored. */
function restoreFacts(step: CheckpointStep): Fact[] {
  return [
    { name: "State size", value: step.full_bytes === null ? "unknown" : bytes(step.full_bytes) },
    { name: "Values", value: valuesText(step) },
    { name: "Survives", value: survivesText(step) },
    { name: "Used by", value: withOptions(usedByText(step)) },
    { name: "Time to read", value: restoreSentence(step) },
  ];
}

function nodesText(step: CheckpointStep): string {
  if (step.nodes.length === 0) return "unknown";
  const more = step.node_count - step.nodes.length;
  return step.nodes.join(", ") + (more > 0 ? `, and ${integer(more)} more` : "");
}
