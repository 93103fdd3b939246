/** Every detector, what it found, and its policy. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Detector } from "@/api/types";
import { cx } from "@/lib/cx";
import { integer, plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf } from "@/lib/status-styles";
import { CopyMenu, curl } from "@/ui/copy";
import { Input } from "@/ui/field";
import { Icon } from "@/ui/icon";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { StatePill } from "@/ui/state-pill";
import { DetectorDetails } from "./detector-details";
import { detectorModes, matchesDetector, runningText } from "./detector-model";
import { PolicyTabs } from "./policy-tabs";
import { detectorsQuery } from "./queries";
import type { DetectorSearch } from "./search";

const route = getRouteApi("/shell/policies/detectors");
const GRID = "md:grid md:grid-cols-[minmax(0,1fr)_10rem_4rem_4rem_4rem_9rem_1rem] md:items-center";

export function DetectorsPage() {
  const { q = "", detector: open } = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery({ ...detectorsQuery(), refetchInterval: usePolling(20_000) });
  const go = (change: DetectorSearch) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  const found = query.data?.items.filter((detector) => matchesDetector(detector, q)) ?? [];
  const changed = query.data?.items.filter((detector) => detector.policy.mode !== "default").length ?? 0;
  return (
    <Page
      title="Detector policies"
      meta={query.data && `${plural(changed, "detector")} of ${query.data.items.length} with a policy`}
      actions={
        <>
          <PolicyTabs />
          <CopyMenu commands={[curl("/v1/detector-policies")]} />
        </>
      }
    >
      <Panel
        title="Detectors"
        aside={
          <Input
            type="search"
            aria-label="Search detectors"
            placeholder="Name, text, or finding kind"
            defaultValue={q}
            onChange={(event) => go({ q: event.target.value || undefined })}
            className="w-56"
          />
        }
        flush
      >
        <QueryView query={query}>
          {({ min_confidence }) => (
            <>
              <div
                aria-hidden="true"
                className={cx("gap-3 px-4 pb-1.5 text-ink-3 text-xs max-md:hidden", GRID)}
              >
                <span>Detector</span>
                <span>Status</span>
                <span className="text-right">Active</span>
                <span className="text-right">30 days</span>
                <span className="text-right">Drains</span>
                <span className="pl-4">Policy</span>
              </div>
              {found.length === 0 && (
                <div className="px-4 pb-3">
                  <Empty title="No matching detectors.">Change the search.</Empty>
                </div>
              )}
              <ul>
                {found.map((detector) => (
                  <li key={detector.name} className="border-line border-t">
                    <Row
                      detector={detector}
                      open={detector.name === open}
                      onToggle={() => go({ detector: detector.name === open ? undefined : detector.name })}
                    />
                    {detector.name === open && (
                      <DetectorDetails detector={detector} siteConfidence={min_confidence} />
                    )}
                  </li>
                ))}
              </ul>
            </>
          )}
        </QueryView>
      </Panel>
    </Page>
  );
}

function Row({ detector, open, onToggle }: { detector: Detector; open: boolean; onToggle: () => void }) {
  const { name, about, policy } = detector;
  return (
    <button
      type="button"
      aria-expanded={open}
      onClick={onToggle}
      className={cx(
        "flex w-full flex-wrap items-baseline gap-x-4 gap-y-1 px-4 py-2 text-left text-sm hover:bg-hover md:gap-3",
        GRID,
      )}
    >
      <span className="min-w-0 max-md:basis-full">
        <b className="block font-medium">{name}</b>
        <span className={cx("block text-ink-3 text-xs", !open && "truncate")} title={about}>
          {about}
        </span>
      </span>
      <span className="text-ink-2 text-xs max-md:basis-full">{runningText(detector)}</span>
      <Count label="active findings">{detector.active_findings}</Count>
      <Count label="findings in 30 days">{detector.recent_findings}</Count>
      <Count label="drains">{detector.drains}</Count>
      <span className="md:pl-4">
        <StatePill look={statusStyleOf(detectorModes, policy.mode)} quiet />
      </span>
      <span className={cx("text-ink-3 max-md:hidden", open && "rotate-180")}>
        <Icon name="down" size={14} />
      </span>
    </button>
  );
}

/** A number with its label on a phone and for screen readers; a wide page has it in the head of the column. */
function Count({ label, children }: { label: string; children: number }): ReactNode {
  return (
    <span className={cx("num md:text-right", children === 0 && "text-ink-3")}>
      {integer(children)} <span className="text-ink-3 text-xs md:sr-only">{label}</span>
    </span>
  );
}
