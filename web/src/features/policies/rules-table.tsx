import type { Policy, PolicyRule } from "@/api/types";
import { humanize, plural } from "@/lib/format";
import { recommendedAction, recommendedActionOrder, severity, statusStyleOf } from "@/lib/status-styles";
import { Button } from "@/ui/button";
import { Input } from "@/ui/field";
import { Glyph } from "@/ui/glyph";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { StatePill } from "@/ui/state-pill";
import { type Column, columnsFor, DataTable } from "@/ui/table";
import { chosenRules, ruleKey } from "./model";
import type { PolicySearch } from "./search";

interface Props {
  policy: Policy;
  /** Keys of the rules in the shadow version. */
  shadowed: Set<string>;
  search: PolicySearch;
  onSearch: (change: Partial<PolicySearch>) => void;
  onOverride: (rule: PolicyRule) => void;
}

const severityOrder = ["info", "warning", "critical"];
const column = columnsFor<PolicyRule>();

function columnsWith(shadowed: Set<string>, onOverride: (rule: PolicyRule) => void): Column<PolicyRule>[] {
  return column.columns([
    column.accessor((rule) => (rule.family === "xid" ? 0 : 1e6) + Number(rule.code), {
      id: "code",
      header: "Code",
      cell: ({ row }) => (
        <span className="num">
          <span className="text-ink-3 text-xs">{row.original.family.toUpperCase()}</span>{" "}
          <b className="font-semibold">{row.original.code}</b>
        </span>
      ),
    }),
    column.accessor("title", {
      header: "Meaning",
      cell: ({ row }) => <Meaning rule={row.original} shadowed={shadowed.has(ruleKey(row.original))} />,
    }),
    column.accessor("group", {
      header: "Group",
      cell: ({ row }) => <span className="text-ink-2">{humanize(row.original.group)}</span>,
    }),
    column.accessor((rule) => severityOrder.indexOf(rule.severity), {
      id: "severity",
      header: "Severity",
      cell: ({ row }) => <StatePill look={statusStyleOf(severity, row.original.severity)} quiet />,
    }),
    column.accessor((rule) => recommendedActionOrder.indexOf(rule.recommended_action), {
      id: "recommended_action",
      header: "Recommended action",
      cell: ({ row }) => {
        const look = statusStyleOf(recommendedAction, row.original.recommended_action);
        return <StatePill look={look} quiet />;
      },
    }),
    column.display({
      id: "override",
      header: () => <span className="sr-only">Override</span>,
      cell: ({ row }) => (
        <Button kind="ghost" className="h-7" onClick={() => onOverride(row.original)}>
          Override
        </Button>
      ),
    }),
  ]) as Column<PolicyRule>[];
}

function Meaning({ rule, shadowed }: { rule: PolicyRule; shadowed: boolean }) {
  return (
    <span className="block py-1.5" title={[rule.note, rule.repeat].filter(Boolean).join(" · ") || undefined}>
      <span className="flex items-center gap-2">
        <span className="truncate text-ink first-letter:uppercase">{rule.title}</span>
        {rule.overridden && <Mark text="overridden" about="The site's overrides change this rule" />}
        {shadowed && <Mark text="shadow" about="The shadow version changes this rule" />}
      </span>
      {(rule.note || rule.repeat) && (
        <span className="block truncate text-ink-3 text-xs">
          {rule.note}
          {rule.repeat && (
            <>
              {rule.note && " · "}repeated: <span className="text-ink-2">{rule.repeat}</span>
            </>
          )}
        </span>
      )}
    </span>
  );
}

function Mark({ text, about }: { text: string; about: string }) {
  return (
    <span
      title={about}
      className="inline-flex shrink-0 items-center gap-1 rounded-[5px] bg-draining-soft px-1.5 font-medium text-2xs text-draining"
    >
      <Glyph name={text === "shadow" ? "half" : "ring"} size={9} />
      {text}
    </span>
  );
}

const choices = [
  { value: "meaningful", label: "Rules with a meaning" },
  { value: "all", label: "All rules" },
  { value: "evicts", label: "Rules that drain the node" },
  { value: "overridden", label: "Overridden rules" },
  { value: "xid", label: "XID (GPU)" },
  { value: "sxid", label: "SXID (switch)" },
];

export function RulesTable({ policy, shadowed, search, onSearch, onOverride }: Props) {
  const rules = chosenRules(policy.rules, search);
  return (
    <Panel
      title="Rules"
      about={
        rules.length === policy.rules.length
          ? undefined
          : `${plural(rules.length, "rule")} of ${policy.rules.length}`
      }
      flush
      aside={
        <>
          <Input
            type="search"
            aria-label="Search rules by code or text"
            placeholder="Code or text"
            defaultValue={search.q ?? ""}
            onChange={(event) => onSearch({ q: event.target.value || undefined })}
            className="w-44"
          />
          <Select
            label="Rules"
            value={search.only ?? "meaningful"}
            onChange={(value) =>
              onSearch({ only: value === "meaningful" ? undefined : (value as PolicySearch["only"]) })
            }
            groups={[{ options: choices }]}
          />
        </>
      }
    >
      {rules.length === 0 ? (
        <div className="px-4 pb-4">
          <Empty title="No matching rules.">
            The rule for unknown codes covers codes without a rule: it warns and takes no node out of service.
          </Empty>
        </div>
      ) : (
        <DataTable
          label="Rules"
          data={rules}
          columns={columnsWith(shadowed, onOverride)}
          rowId={ruleKey}
          sort={search.sort ?? "code"}
          onSort={(sort) => onSearch({ sort })}
          grow="title"
          columnClass={{ title: "min-w-56", group: "max-[1300px]:hidden" }}
        />
      )}
    </Panel>
  );
}
