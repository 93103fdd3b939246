/** The history of one device across nodes, newest first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { DeviceDetail, HistoryEntry } from "@/api/types";
import { humanize, readable } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { clock, iso } from "@/lib/time";
import { Button } from "@/ui/button";
import { Glyph } from "@/ui/glyph";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { byDay, chosenEntries, entryLook, entryTitle, topicCounts, topicLabels } from "./history-model";
import { deviceHistoryQuery } from "./queries";
import { type DeviceSearch, type Topic, topics } from "./search";

const route = getRouteApi("/shell/devices/$device");

export function DeviceHistory({
  device,
  locations,
}: {
  device: string;
  locations: DeviceDetail["locations"];
}) {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const query = useInfiniteQuery({ ...deviceHistoryQuery(device), refetchInterval: usePolling(20_000) });
  const items = query.data?.pages.flatMap((page) => page.items);
  const shown = items && chosenEntries(items, search);
  const set = (change: DeviceSearch) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: true });
  return (
    <Panel
      title="History"
      about="newest first"
      flush
      aside={<Filters items={items ?? []} locations={locations} search={search} onChange={set} />}
    >
      {query.isPending && <SkeletonRows className="px-4 pb-4" />}
      {query.isError && (
        <div className="px-4 pb-3">
          {items ? (
            <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />
          ) : (
            <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
          )}
        </div>
      )}
      {shown?.length === 0 && (
        <div className="px-4 pb-3">
          {items?.length === 0 ? (
            <Empty title="No history yet.">
              Findings, driver events, moves between nodes, and verdicts of this device appear here.
            </Empty>
          ) : (
            <Empty title="No matching entries among those loaded." />
          )}
        </div>
      )}
      {byDay(shown ?? []).map(({ day, entries }) => (
        <section key={day} aria-label={day}>
          <h3 className="num border-line border-t bg-sunken px-4 py-1 text-ink-2 text-xs">{day}</h3>
          <ol>
            {entries.map((entry, index) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: entries have no ID
              <Entry key={`${entry.time}${entry.kind}${index}`} entry={entry} />
            ))}
          </ol>
        </section>
      ))}
      {query.hasNextPage && (
        <div className="border-line border-t px-4 py-3">
          <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
    </Panel>
  );
}

function Entry({ entry }: { entry: HistoryEntry }) {
  const look = entryLook(entry);
  return (
    <li className="grid grid-cols-[4.5rem_1rem_minmax(0,1fr)_auto] items-baseline gap-x-2.5 px-4 py-1.5 text-sm not-first:border-line not-first:border-t">
      <time dateTime={iso(entry.time)} title={iso(entry.time)} className="num text-ink-3 text-xs">
        {clock(entry.time)}
      </time>
      <Glyph name={look.glyph} tone={look.tone} size={11} />
      <div className="min-w-0">
        <p className="font-medium">
          <span className="sr-only">{humanize(entry.kind)}: </span>
          {entryTitle(entry)}
        </p>
        {entry.text && entry.text !== entry.title && (
          <p className="text-ink-2 text-xs">{readable(entry.text)}</p>
        )}
      </div>
      <span className="text-right text-xs">
        <Link
          to="/nodes/$name"
          params={{ name: entry.node }}
          search={{}}
          className="text-ink-3 hover:underline"
        >
          {entry.node}
        </Link>
        <Reference entry={entry} />
      </span>
    </li>
  );
}

/** The link to the page of an entry, if it has one. */
function Reference({ entry }: { entry: HistoryEntry }) {
  if (entry.ref === null) return null;
  const look = "block text-accent hover:underline";
  if (entry.kind === "verdict")
    return (
      <Link to="/validation/$id" params={{ id: entry.ref }} className={look}>
        validation
      </Link>
    );
  if (entry.kind === "remediation")
    return (
      <Link to="/remediation" search={{ node: entry.node }} className={look}>
        proposals
      </Link>
    );
  return null;
}

interface FilterProps {
  items: HistoryEntry[];
  locations: DeviceDetail["locations"];
  search: DeviceSearch;
  onChange: (change: DeviceSearch) => void;
}

function Filters({ items, locations, search, onChange }: FilterProps) {
  const counts = topicCounts(items);
  const nodes = [...new Set(locations.map((home) => home.node))];
  return (
    <>
      <Select
        label="Kind"
        value={search.show ?? "all"}
        onChange={(value) => onChange({ show: value === "all" ? undefined : (value as Topic) })}
        groups={[
          {
            options: [
              { value: "all", label: "All kinds" },
              ...topics.map((topic) => ({
                value: topic,
                label: `${topicLabels[topic]} (${counts.get(topic) ?? 0})`,
                disabled: !counts.has(topic),
              })),
            ],
          },
        ]}
      />
      {nodes.length > 1 && (
        <Select
          label="Node"
          value={search.node ?? "any"}
          onChange={(value) => onChange({ node: value === "any" ? undefined : value })}
          groups={[
            {
              options: [
                { value: "any", label: "All nodes" },
                ...nodes.map((node) => ({ value: node, label: node })),
              ],
            },
          ]}
        />
      )}
    </>
  );
}
