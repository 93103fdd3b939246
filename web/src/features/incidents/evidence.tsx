import { useMemo } from "react";
import type { EvidenceSeries, Finding } from "@/api/types";
import type { Line } from "@/charts/chart-options";
import { TimeChart } from "@/charts/time-chart";
import { deviceName } from "@/features/devices/device-words";
import { humanize, percent, plural, quantity, readable, signalLabel, unitOf } from "@/lib/format";
import { lookOf, remedy, severity } from "@/lib/states";
import { Clock } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";

/** Why: every finding with the numbers it rests on, and the line that a person would have looked at. */
export function Evidence({ findings }: { findings: Finding[] }) {
  return (
    <Panel
      title="Evidence"
      about={findings.length > 0 ? plural(findings.length, "finding") : undefined}
      flush
    >
      {findings.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No finding is attached.">
            The incident was opened from an event alone; see its history.
          </Empty>
        </div>
      ) : (
        findings.map((finding) => <FindingView key={finding.id} finding={finding} />)
      )}
    </Panel>
  );
}

function about(finding: Finding): string {
  const { job, rank, node, device } = finding.entity;
  return [job, rank === null ? null : `rank ${rank}`, node, device && deviceName(device)]
    .filter(Boolean)
    .join(" · ");
}

function FindingView({ finding }: { finding: Finding }) {
  const look = lookOf(severity, finding.severity);
  const numbers = Object.entries(finding.evidence.numbers);
  return (
    <article className="border-line border-t px-4 py-3">
      <header className="flex flex-wrap items-center gap-x-3 gap-y-0.5 text-sm">
        <Glyph name={look.glyph} tone={look.tone} size={11} />
        <h3 className="font-medium">{humanize(finding.kind)}</h3>
        <span className="text-ink-3 text-xs">{about(finding)}</span>
        {!finding.active && <span className="text-ink-3 text-xs">no longer holds</span>}
        <span className="ml-auto text-ink-3 text-xs">
          <Clock at={finding.time} millis />
        </span>
      </header>
      <p className="mt-0.5 text-ink-2 text-sm">{readable(finding.evidence.summary)}</p>
      <p className="num mt-1 flex flex-wrap gap-x-4 text-ink-3 text-xs">
        <span>
          detector <b className="font-medium text-ink-2">{finding.detector}</b>
        </span>
        <span>
          confidence <b className="font-medium text-ink-2">{percent(finding.confidence, 0)}</b>
        </span>
        {finding.remedy !== "none" && (
          <span title={lookOf(remedy, finding.remedy).about}>
            would mend it <b className="font-medium text-ink-2">{lookOf(remedy, finding.remedy).label}</b>
          </span>
        )}
        {numbers.map(([name, value]) => (
          <span key={name}>
            {signalLabel(name).toLowerCase()}{" "}
            <b className="font-medium text-ink-2">{numberText(name, value)}</b>
          </span>
        ))}
      </p>
      {finding.evidence.series.map((series) => (
        <SeriesChart key={series.name} series={series} at={finding.time} />
      ))}
    </article>
  );
}

/** Evidence numbers carry their unit in their name, as everything in the house does. */
function unitOfNumber(name: string): string {
  if (name.endsWith("_seconds") || name.endsWith("_s")) return "s";
  if (name.endsWith("_bytes")) return "B";
  return "1";
}

/** A process id or a step is a name, not an amount. */
function numberText(name: string, value: number | null): string {
  const unit = unitOfNumber(name);
  return unit === "1" && Number.isInteger(value) ? String(value) : quantity(value, unit);
}

function SeriesChart({ series, at }: { series: EvidenceSeries; at: number }) {
  const lines = useMemo((): Line[] => {
    const own: Line = { label: "measured", values: series.y };
    if (series.peers.length !== series.x.length) return [own];
    return [own, { label: "peers (median)", values: series.peers, context: true }];
  }, [series]);
  const byTime = series.x_is !== "step";
  const marks = useMemo(() => (byTime ? [{ x: at, tone: "quarantined", label: "found" }] : []), [byTime, at]);
  if (series.x.length === 0) return null;
  return (
    <div className="mt-3">
      <TimeChart
        title={signalLabel(series.name)}
        about={
          series.threshold === null
            ? undefined
            : `threshold ${quantity(series.threshold, unitOf(series.name, series.unit))}`
        }
        x={series.x}
        xIs={byTime ? "time" : "step"}
        unit={unitOf(series.name, series.unit)}
        lines={lines}
        threshold={series.threshold}
        marks={marks}
        height={150}
      />
    </div>
  );
}
