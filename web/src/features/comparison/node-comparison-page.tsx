/** One validation compared with an earlier one of the same node, for example after a repair. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import type { NodeChange } from "@/api/types";
import { validationQuery, validationsQuery } from "@/features/validation/queries";
import { humanize, plural, quantity, shortId } from "@/lib/format";
import { statusStyleOf, verdict } from "@/lib/status-styles";
import { useNow, when } from "@/lib/time";
import { CopyMenu, curl } from "@/ui/copy";
import { Empty } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { Select } from "@/ui/select";
import { StatePill } from "@/ui/state-pill";
import { ChangeRow } from "./change-row";
import { changeText, counted } from "./model";
import { pastQuery } from "./queries";

const route = getRouteApi("/shell/validation/$id/comparison");

export function NodeComparisonPage() {
  const { id } = route.useParams();
  const { before } = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery(pastQuery(id, before));
  const reported = query.data;
  return (
    <Page
      title={reported ? `${reported.node}, before and after` : "Before and after"}
      crumb={
        <Link to="/validation/$id" params={{ id }} className="hover:underline">
          Validation {shortId(id)}
        </Link>
      }
      mark={reported && <StatePill look={statusStyleOf(verdict, reported.verdict)} />}
      meta={
        reported && (
          <>
            <Link
              to="/validation/$id"
              params={{ id: reported.before }}
              className="text-accent hover:underline"
            >
              before: {shortId(reported.before)}
            </Link>
            <span>{summary(reported.changes)}</span>
          </>
        )
      }
      actions={
        <>
          <Earlier
            id={id}
            before={reported?.before}
            onPick={(next) => void navigate({ search: { before: next } })}
          />
          <CopyMenu
            commands={[curl(`/v1/validations/${id}/comparison${before ? `?before=${before}` : ""}`)]}
          />
        </>
      }
    >
      <QueryView query={query}>{(data) => <Changes changes={data.changes} />}</QueryView>
    </Page>
  );
}

function summary(changes: NodeChange[]): string {
  const failed = counted(changes, "fail");
  const unknown = counted(changes, "unknown");
  return `${plural(changes.length, "metric")}, ${failed === 0 ? "none" : failed} slower than the normal variation of its cohort${unknown > 0 ? `, ${unknown} unknown` : ""}`;
}

interface EarlierProps {
  id: string;
  before: string | undefined;
  onPick: (before: string) => void;
}

/** The earlier validations of the node. */
function Earlier({ id, before, onPick }: EarlierProps) {
  const now = useNow();
  const validation = useQuery(validationQuery(id)).data;
  const node = validation?.node;
  const query = useInfiniteQuery({ ...validationsQuery({ node }), enabled: node !== undefined });
  const earlier = query.data?.pages
    .flatMap((page) => page.items)
    .filter((one) => one.state === "done" && one.created_at < (validation?.created_at ?? 0));
  if (!earlier || earlier.length === 0 || before === undefined) return null;
  return (
    <Select
      label="Compare with"
      value={before}
      onChange={onPick}
      groups={[
        {
          label: "Compare with",
          options: earlier.map((one) => ({
            value: one.id,
            label: `${humanize(one.suite)} of ${when(one.created_at, now)}`,
          })),
        },
      ]}
    />
  );
}

function Changes({ changes }: { changes: NodeChange[] }) {
  const devices = new Set(changes.map((one) => one.device)).size;
  return (
    <Panel title="Metrics" about="worst first; the normal variation is learned from the cohort" flush>
      {changes.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No results in either validation." />
        </div>
      )}
      <ul aria-label="Metrics before and after">
        {changes.map((one, i) => (
          <ChangeRow
            key={`${one.benchmark}/${one.metric}/${one.device}`}
            benchmark={one.benchmark}
            metric={one.metric}
            device={devices > 1 ? one.device : undefined}
            unit={one.unit}
            verdict={one.verdict}
            change={one.better === "equal" ? sameText(one) : changeText(one.worse)}
            sure={`${quantity(one.before, one.unit)} → ${quantity(one.after, one.unit)}`}
            reason={one.reason}
            before={one.better === "equal" ? [] : one.before_values}
            after={one.better === "equal" ? [] : one.after_values}
            one="repetition"
            shown={i === 0 && one.verdict === "fail"}
          />
        ))}
      </ul>
    </Panel>
  );
}

const sameText = (one: NodeChange) =>
  one.verdict === "unknown" ? "not comparable" : one.verdict === "pass" ? "same result" : "different result";
