import { useMemo } from "react";
import type { EvidenceSeries, Finding, IncidentDetail } from "@/api/types";
import type { Line } from "@/charts/chart-options";
import { TimeChart } from "@/charts/time-chart";
import { deviceName } from "@/features/devices/device-labels";
import { DetectorPolicyLink } from "@/features/policies/detector-policy-link";
import { ownStep } from "@/features/run-analysis/findings-model";
import {
  humanize,
  namedNumber,
  percent,
  plural,
  quantity,
  readable,
  signalLabel,
  unitOf,
} from "@/lib/format";
import { recommendedAction, severity, statusStyleOf } from "@/lib/status-styles";
import { Clock } from "@/ui/age";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { causeLabel, rankedFindings } from "./cause";

/** The findings, most likely root cause first, each with its numbers and its chart. */
export function Evidence({ incident }: { incident: IncidentDetail }) {
  const findings = rankedFindings(incident, incident.findings);
  const root = findings[0];
  return (
    <Panel
      title="Evidence"
      about={
        findings.length > 1
          ? `${plural(incident.findings_total, "finding")}, most likely root cause first${
              incident.findings_total > findings.length ? `. Shown: ${findings.length}` : ""
            }`
          : undefined
      }
      flush
    >
      {findings.length === 0 ? (
        <div className="px-4 pb-3">
          <Empty title="No findings.">An event opened this incident. See its history.</Empty>
        </div>
      ) : (
        findings.map((finding, index) => (
          <FindingView
            key={finding.id}
            finding={finding}
            place={findings.length < 2 ? "" : placeOf(finding, index, root)}
          />
        ))
      )}
    </Panel>
  );
}

/** The role of a finding: the root cause, the same kind, or a consequence. */
function placeOf(finding: Finding, index: number, root: Finding | undefined): string {
  if (index === 0) return "Most likely root cause";
  return finding.kind === root?.kind ? "Same kind" : "Consequence";
}

function about(finding: Finding): string {
  const { job, rank, peer, node, device } = finding.entity;
  const ranks = rank === null ? null : peer === null ? `rank ${rank}` : `rank ${rank} → rank ${peer}`;
  return [job, ranks, node, device && deviceName(device)].filter(Boolean).join(" · ");
}

function FindingView({ finding, place }: { finding: Finding; place: string }) {
  const look = statusStyleOf(severity, finding.severity);
  const numbers = Object.entries(finding.evidence.numbers);
  return (
    <article className="border-line border-t px-4 py-3">
      <header className="flex flex-wrap items-center gap-x-3 gap-y-0.5 text-sm">
        <Glyph name={look.glyph} tone={look.tone} size={11} />
        <h3 className="font-medium">{humanize(finding.kind)}</h3>
        <span className="text-ink-3 text-xs">{about(finding)}</span>
        {place && (
          <span
            className={
              place === "Most likely root cause"
                ? "rounded bg-accent-soft px-1.5 font-medium text-ink text-xs leading-5"
                : "text-ink-3 text-xs"
            }
          >
            {place}
          </span>
        )}
        {!finding.active && <span className="text-ink-3 text-xs">cleared</span>}
        <span className="ml-auto text-ink-3 text-xs">
          <Clock at={finding.time} millis />
        </span>
      </header>
      <p className="mt-0.5 text-ink-2 text-sm">{readable(finding.evidence.summary)}</p>
      <p className="num mt-1 flex flex-wrap gap-x-4 text-ink-3 text-xs">
        <span>
          detector <b className="font-medium text-ink-2">{finding.detector}</b>
          <DetectorPolicyLink detector={finding.detector} />
        </span>
        <span>
          confidence <b className="font-medium text-ink-2">{percent(finding.confidence, 0)}</b>
        </span>
        {finding.cause && (
          <span title={causeLabel(finding.cause).about}>
            cause <b className="font-medium text-ink-2">{causeLabel(finding.cause).label}</b>
          </span>
        )}
        {finding.recommended_action !== "none" && (
          <span title={statusStyleOf(recommendedAction, finding.recommended_action).about}>
            recommended action{" "}
            <b className="font-medium text-ink-2">
              {statusStyleOf(recommendedAction, finding.recommended_action).label}
            </b>
          </span>
        )}
        {numbers.map(([name, value]) => (
          <span key={name}>
            {signalLabel(name).toLowerCase()}{" "}
            <b className="font-medium text-ink-2">{namedNumber(name, value)}</b>
          </span>
        ))}
      </p>
      {finding.evidence.series.map((series) => (
        <SeriesChart key={series.name} series={series} at={finding.time} step={ownStep(finding)} />
      ))}
    </article>
  );
}

interface SeriesProps {
  series: EvidenceSeries;
  at: number;
  step: number | null;
}

function SeriesChart({ series, at, step }: SeriesProps) {
  const lines = useMemo((): Line[] => {
    const own: Line = { label: "measured", values: series.y };
    if (series.peers.length !== series.x.length) return [own];
    return [own, { label: "peers (median)", values: series.peers, context: true }];
  }, [series]);
  const byTime = series.x_is !== "step";
  const found = byTime ? at : step;
  const marks = useMemo(
    () => (found === null ? [] : [{ x: found, tone: "quarantined", label: "found" }]),
    [found],
  );
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
