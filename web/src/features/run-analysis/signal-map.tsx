import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { Job } from "@/api/types";
import { useDark } from "@/app/theme";
import { divergingGradient } from "@/charts/color";
import { breaks } from "@/charts/matrix-layout";
import { MatrixMap } from "@/charts/matrix-map";
import { integer, percent } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { useWidth } from "@/lib/use-size";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Picker } from "@/ui/picker";
import { QueryView } from "@/ui/query-view";
import { Skeleton } from "@/ui/skeleton";
import { againstRanks } from "./findings-model";
import { heldFindingsQuery, signalsQuery } from "./queries";
import { DEFAULT_SIGNAL, deviationText, rankSignals, signalOf } from "./rank-signals";
import { cellColor, cellText, type SignalPicture, signalPicture } from "./signal-picture";
import type { JobSignals } from "./types";

const route = getRouteApi("/shell/jobs/$id");
const options = rankSignals.map(({ name, label, group }) => ({ value: name, label, group, about: name }));
const GUTTER = 44;
const MAX_HEIGHT = 440;

/** Ranks × steps of one signal, each cell relative to the other ranks of its stage: a straggler is a line. */
export function SignalMap({ job }: { job: Job }) {
  const { signal: name = DEFAULT_SIGNAL, from, to } = route.useSearch();
  const navigate = route.useNavigate();
  const chosen = signalOf(name);
  const names = useMemo(() => [...new Set([chosen.name, "step_time_seconds"])], [chosen.name]);
  const polling = usePolling(5_000, 5_000);
  const query = useQuery({
    ...signalsQuery(job.id, job.topology.world_size, names, from, to),
    refetchInterval: to === undefined && job.finished_at === null ? polling : false,
  });
  return (
    <Panel
      title="Ranks over steps"
      about={
        chosen.group === "Waiting"
          ? "relative to the other ranks of the stage; a rank that waits least may delay the others"
          : "relative to the other ranks of the pipeline stage"
      }
      aside={
        <Picker
          label="Signal"
          value={chosen.name}
          options={options}
          placeholder="Compute, wait, gradient norm …"
          onChange={(signal) => void navigate({ search: (old) => ({ ...old, signal }), replace: true })}
        />
      }
    >
      <QueryView query={query} loading={<Skeleton className="h-56" />}>
        {(data) => <Answer job={job} data={data} name={chosen.name} />}
      </QueryView>
    </Panel>
  );
}

function Answer({ job, data, name }: { job: Job; data: JobSignals; name: string }) {
  const [frame, width] = useWidth<HTMLDivElement>();
  const picture = useMemo(
    () => signalPicture(data, name, job.topology, { width: width - GUTTER - 16, maxHeight: MAX_HEIGHT }),
    [data, name, job.topology, width],
  );
  const chosen = signalOf(name);
  return (
    <div ref={frame} className="min-w-0">
      {data.steps.length === 0 || picture.known === 0 ? (
        <Empty
          title={
            data.steps.length === 0
              ? "No steps reported yet."
              : `No rank reports ${chosen.label.toLowerCase()}.`
          }
        >
          {data.steps.length > 0 &&
            "The training SDK reports this signal where it can measure it. Select another signal."}
        </Empty>
      ) : picture.compared === 0 ? (
        <Empty title="No peers.">Every pipeline stage has only one rank, so no rank has a peer.</Empty>
      ) : (
        width > 0 && <Picture job={job} picture={picture} width={width} />
      )}
    </div>
  );
}

function Picture({ job, picture, width }: { job: Job; picture: SignalPicture; width: number }) {
  const dark = useDark();
  const navigate = route.useNavigate();
  const [cursor, setCursor] = useState<{ row: number; column: number } | null>(null);
  const findings = useQuery({ ...heldFindingsQuery(job.id), refetchInterval: usePolling(15_000, 8_000) });
  const color = useMemo(() => cellColor(picture, dark), [picture, dark]);
  const flags = useMemo(() => {
    const against = againstRanks(findings.data ?? []);
    const found = new Map<number, string>();
    picture.rowBins.forEach(([a, b], row) => {
      const said = picture.ranks.slice(a, b).filter((rank) => against.has(rank));
      if (said.length > 0)
        found.set(row, said.map((rank) => `rank ${rank}: ${against.get(rank)}`).join("; "));
    });
    return found;
  }, [findings.data, picture]);
  const at =
    cursor && cursor.row < picture.rowBins.length && cursor.column < picture.columnBins.length
      ? cursor
      : null;
  return (
    <>
      <p className="num min-h-10 text-ink-2 text-xs leading-5 sm:min-h-5">
        {at ? (
          cellText(picture, at)
        ) : (
          <span className="text-ink-3">Point at a cell or use the arrow keys. Click to select the rank.</span>
        )}
      </p>
      <MatrixMap
        label={`${picture.signal.label} of ${integer(picture.ranks.length)} ranks over ${integer(picture.steps.length)} steps, against peers`}
        rows={picture.rowBins.length}
        columns={picture.columnBins.length}
        color={color}
        cursor={at}
        onCursor={setCursor}
        onOpen={({ row, column }) => {
          const rank = picture.rankAt(row, column);
          void navigate({ search: (old) => ({ ...old, rank }), replace: true, resetScroll: false });
        }}
        describe={(place) => cellText(picture, place)}
        rowAxis={{
          title: "rank",
          label: (row) => String(picture.ranks[picture.rowBins[row]?.[0] ?? 0]),
          flags,
        }}
        columnAxis={{
          title: "step",
          label: (k) => String(picture.steps[picture.columnBins[k]?.[0] ?? 0] ?? ""),
        }}
        width={width}
        rowBreaks={breaks(picture.nodes, picture.rowBins, MAX_HEIGHT / picture.rowBins.length)}
        maxHeight={MAX_HEIGHT}
        gutter={GUTTER}
        missing
      />
      <Scale picture={picture} dark={dark} flagged={flags.size > 0} />
      <Standouts picture={picture} />
    </>
  );
}

function Scale({ picture, dark, flagged }: { picture: SignalPicture; dark: boolean; flagged: boolean }) {
  const unit = picture.signal.against === "share" ? " of a step" : "";
  return (
    <div className="num mt-1 flex flex-wrap items-center gap-x-4 gap-y-1 text-ink-3 text-xs">
      <span className="flex items-center gap-2">
        <span>
          −{percent(picture.scale, 0)}
          {unit}
        </span>
        <span
          aria-hidden="true"
          className="h-2 w-36 rounded-[3px] border border-line"
          style={{ background: divergingGradient(dark) }}
        />
        <span>
          +{percent(picture.scale, 0)}
          {unit} and more
        </span>
      </span>
      <span className="flex items-center gap-1.5">
        <span aria-hidden="true" className="diagonal size-3 rounded-[2px] border border-line" /> unknown
      </span>
      {flagged && <span>◀ rank with an active finding</span>}
      {picture.rowBins.length < picture.ranks.length && (
        <span>
          {Math.ceil(picture.ranks.length / picture.rowBins.length)} ranks per row: the largest deviation is
          shown
        </span>
      )}
    </div>
  );
}

/** The picture as text. */
function Standouts({ picture }: { picture: SignalPicture }) {
  const { standouts, signal } = picture;
  return (
    <p className="num mt-2 text-ink-2 text-sm">
      {standouts.length === 0
        ? "No rank stands out over the last 20 steps."
        : `Over the last 20 steps: ${standouts.map((s) => `rank ${s.rank} is ${deviationText(signal.against, s.deviation)}`).join(", ")}.`}
    </p>
  );
}
