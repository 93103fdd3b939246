/** What failures cost over a time: effective training time, lost GPU hours, and times between failures. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Report } from "@/api/types";
import { duration, integer, percent } from "@/lib/format";
import { Button } from "@/ui/button";
import { Stat } from "@/ui/facts";
import { Field, Input } from "@/ui/field";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Segmented } from "@/ui/segmented";
import { change, falseDrains, gpuHours, hours, limits, lostParts } from "./model";
import { reportQuery } from "./queries";
import { Tables } from "./report-tables";

const spans = [
  { value: "7", label: "7 days" },
  { value: "30", label: "30 days" },
  { value: "90", label: "90 days" },
] as const;

const minutes = (text: string) => (text.trim() === "" || !(Number(text) >= 0) ? 0 : Number(text));

export function ReportPage() {
  const [days, setDays] = useState<(typeof spans)[number]["value"]>("30");
  const [restart, setRestart] = useState("10");
  const [checkpoint, setCheckpoint] = useState("60");
  const query = useQuery(
    reportQuery({
      days: Number(days),
      restartMinutes: minutes(restart),
      checkpointMinutes: minutes(checkpoint),
    }),
  );
  return (
    <Page
      title="Reliability"
      meta="What failures cost, and how long nodes and jobs run without them."
      actions={
        <>
          <Segmented label="Time" value={days} onChange={setDays} options={spans} />
          <Button onClick={() => window.print()}>Print</Button>
        </>
      }
    >
      <QueryView query={query}>
        {(report) => (
          <>
            <Summary report={report} />
            <Saved
              report={report}
              restart={restart}
              checkpoint={checkpoint}
              onRestart={setRestart}
              onCheckpoint={setCheckpoint}
            />
            <Tables report={report} />
          </>
        )}
      </QueryView>
    </Page>
  );
}

function Summary({ report: { summary, before } }: { report: Report }) {
  const parts = lostParts(summary);
  const lost = parts.reduce((sum, part) => sum + part.hours, 0);
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
      <Panel title="Summary">
        <div className="grid gap-x-6 gap-y-4 sm:grid-cols-2 md:grid-cols-3">
          <Stat
            value={percent(summary.ettr)}
            name="Effective training time"
            note={change(summary.ettr, before.ettr)}
          />
          <Stat
            value={gpuHours(lost - summary.lost_gpu_hours.out_of_service)}
            name="GPU hours that jobs lost"
            note={`of ${gpuHours(summary.gpu_hours)}`}
          />
          <Stat
            value={integer(summary.incidents)}
            name="Incidents"
            note={`before: ${integer(before.incidents)}`}
          />
          <Stat
            value={hours(summary.between_failures.hours)}
            name="Node time between failures"
            note={limits(summary.between_failures)}
          />
          <Stat
            value={duration(summary.mean_repair_seconds)}
            name="Mean time to recovery"
            note={`before: ${duration(before.mean_repair_seconds)}`}
          />
          <Stat
            value={integer(summary.recoveries)}
            name="Recoveries of jobs"
            note={`${integer(summary.failed_recoveries)} failed`}
          />
          <Stat
            value={percent(summary.drains.ratio)}
            name="False drains"
            note={`${falseDrains(summary.drains)}; ${integer(summary.drains.drains)} drains`}
          />
        </div>
      </Panel>
      <Panel title="Lost GPU hours">
        {lost === 0 ? (
          <Empty title="Nothing was lost." />
        ) : (
          <ul className="flex flex-col gap-2 text-sm">
            {parts.map((part) => (
              <li key={part.name}>
                <div className="flex justify-between gap-3">
                  <span>{part.name}</span>
                  <span className="num text-ink-2">
                    {gpuHours(part.hours)} ({percent(part.share, 0)})
                  </span>
                </div>
                <div className="mt-1 h-1.5 rounded bg-sunken">
                  <div className="h-full rounded bg-accent" style={{ width: `${part.share * 100}%` }} />
                </div>
              </li>
            ))}
          </ul>
        )}
      </Panel>
    </div>
  );
}

interface SavedProps {
  report: Report;
  restart: string;
  checkpoint: string;
  onRestart: (text: string) => void;
  onCheckpoint: (text: string) => void;
}

function Saved({ report, restart, checkpoint, onRestart, onCheckpoint }: SavedProps) {
  return (
    <Panel title="Saved against a restart from the last checkpoint">
      <div className="flex flex-wrap items-end gap-4">
        <Stat value={gpuHours(report.summary.saved_gpu_hours)} name="GPU hours saved" />
        <Minutes label="A restart takes (min)" value={restart} onChange={onRestart} />
        <Minutes label="Between checkpoints (min)" value={checkpoint} onChange={onCheckpoint} />
      </div>
      <ul className="mt-3 list-disc pl-5 text-ink-3 text-xs">
        {report.assumptions.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </Panel>
  );
}

function Minutes({
  label,
  value,
  onChange,
}: {
  label: string;
  value: string;
  onChange: (text: string) => void;
}) {
  return (
    <Field label={label}>
      {(id) => (
        <Input
          id={id}
          type="number"
          min={0}
          max={10080}
          value={value}
          onChange={(event) => onChange(event.target.value)}
          className="w-28"
        />
      )}
    </Field>
  );
}
