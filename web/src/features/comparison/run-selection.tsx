/** The runs to compare: two software versions of a hardware, or a cohort before and after a time. */
import { type FormEvent, useState } from "react";
import type { MeasuredCohort } from "@/api/types";
import { plural } from "@/lib/format";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { Select } from "@/ui/select";
import { byHardware, localOf, secondsOf, softwareOf } from "./model";
import type { Sides } from "./queries";

interface Props {
  known: MeasuredCohort[];
  chosen: Sides | null;
  onSides: (sides: Sides) => void;
}

const ways = [
  { value: "update", label: "An update", title: "Two driver or firmware versions of the same hardware" },
  { value: "moment", label: "A time", title: "The same nodes before and after a time" },
] as const;

export function ChooseSides({ known, chosen, onSides }: Props) {
  const hardware = byHardware(known);
  const names = [...hardware.keys()];
  const [way, setWay] = useState<"update" | "moment">(
    chosen && chosen.at === undefined ? "update" : "moment",
  );
  const [of, setOf] = useState(hardwareOf(known, chosen) ?? names[0] ?? "");
  const versions = hardware.get(of) ?? [];
  const [before, setBefore] = useState(chosen?.before);
  const [after, setAfter] = useState(chosen?.after);
  const [at, setAt] = useState(localOf(chosen?.at));
  const [node, setNode] = useState(chosen?.node ?? "");
  const early = pick(versions, before, 1);
  const late = pick(versions, after, 0);
  const moment = secondsOf(at);
  const ready = way === "update" ? early !== late : moment !== undefined;

  function submit(event: FormEvent) {
    event.preventDefault();
    if (!ready) return;
    const alone = node.trim() || undefined;
    if (way === "update") onSides({ before: early, after: late, node: alone, at: undefined });
    else onSides({ before: of, after: of, node: alone, at: moment });
  }

  const options = versions.map((one) => ({
    value: one.cohort,
    label: `${softwareOf(one.cohort)}, ${plural(one.nodes, "node")}`,
  }));
  return (
    <Panel
      title="Before and after"
      about="find out whether an update or a device caused a slowdown"
      aside={<Segmented label="Compare" value={way} onChange={setWay} options={ways} />}
    >
      <form onSubmit={submit} className="flex flex-wrap items-end gap-x-4 gap-y-3">
        <Labeled name="Hardware">
          <Select
            label="Hardware"
            value={of}
            onChange={setOf}
            groups={[{ options: names.map((value) => ({ value, label: value })) }]}
          />
        </Labeled>
        {way === "update" ? (
          <>
            <Labeled name="Before">
              <Select label="Before" value={early} onChange={setBefore} groups={[{ options }]} />
            </Labeled>
            <Labeled name="After">
              <Select label="After" value={late} onChange={setAfter} groups={[{ options }]} />
            </Labeled>
          </>
        ) : (
          <div className="w-56">
            <Field label="Time">
              {(id) => (
                <Input
                  id={id}
                  type="datetime-local"
                  required
                  value={at}
                  onChange={(event) => setAt(event.target.value)}
                />
              )}
            </Field>
          </div>
        )}
        <div className="w-48">
          <Field label="Node">
            {(id) => (
              <Input
                id={id}
                value={node}
                placeholder="all nodes"
                onChange={(event) => setNode(event.target.value)}
                className="font-mono"
              />
            )}
          </Field>
        </div>
        <Button type="submit" kind="primary" disabled={!ready}>
          Compare
        </Button>
      </form>
      {way === "update" && versions.length < 2 && (
        <p className="mt-2 text-ink-3 text-xs">
          This hardware was measured with only one software version. Compare it before and after a time
          instead.
        </p>
      )}
    </Panel>
  );
}

function Labeled({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div className="flex min-w-0 max-w-full flex-col items-start gap-1">
      <span className="font-medium text-ink text-sm" aria-hidden="true">
        {name}
      </span>
      {children}
    </div>
  );
}

const hardwareOf = (known: MeasuredCohort[], chosen: Sides | null) =>
  known.find((one) => one.cohort === chosen?.after || one.hardware === chosen?.after)?.hardware;

/** Return the selected version, or the one at `place` if it belongs to other hardware. */
function pick(versions: MeasuredCohort[], chosen: string | undefined, place: number): string {
  const found = versions.find((one) => one.cohort === chosen) ?? versions[place] ?? versions[0];
  return found?.cohort ?? "";
}
