/** The XID policy: rules, overrides, versions, and the shadow version. */
import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
import type { Policy } from "@/api/types";
import { usePolling } from "@/lib/live";
import { Age } from "@/ui/age";
import { CopyMenu, CopyText, curl } from "@/ui/copy";
import { Glyph } from "@/ui/glyph";
import { ErrorNotice, StaleStrip } from "@/ui/notice";
import { Page } from "@/ui/page";
import { Segmented } from "@/ui/segmented";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { withStanza } from "./model";
import { OverridesEditor } from "./overrides-editor";
import { PolicyTabs } from "./policy-tabs";
import { policyQuery } from "./queries";
import { RulesTable } from "./rules-table";
import type { PolicyTab } from "./search";
import { ShadowView } from "./shadow-view";
import { useOverridesText } from "./use-overrides-text";
import { Versions } from "./versions";

const route = getRouteApi("/shell/policies/xid");

const tabs: { value: PolicyTab; label: string }[] = [
  { value: "rules", label: "Rules" },
  { value: "overrides", label: "Overrides" },
  { value: "versions", label: "Versions" },
  { value: "shadow", label: "Shadow" },
];

export function PolicyPage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const query = useQuery({ ...policyQuery(), refetchInterval: usePolling(30_000) });
  const overrides = useOverridesText(query.data);
  const [draft, setDraft] = useState<string | null>(null);
  const tab = search.tab ?? "rules";
  const policy = query.data;
  const go = (next: PolicyTab) => void navigate({ search: (old) => ({ ...old, tab: next }), replace: true });
  return (
    <Page
      title="XID policy"
      mark={policy && <Mode policy={policy} />}
      meta={policy && <Meta policy={policy} />}
      actions={
        <>
          <PolicyTabs />
          <Segmented label="View" value={tab} onChange={go} options={tabs} />
          <CopyMenu
            commands={[
              curl("/v1/policies/xid"),
              {
                label: "CLI, to test",
                text: `mainstay policy test overrides.toml --service ${window.location.origin}`,
              },
            ]}
          />
        </>
      }
    >
      {query.isError &&
        (policy ? (
          <StaleStrip
            since={query.dataUpdatedAt / 1000}
            error={query.error}
            onRetry={() => void query.refetch()}
          />
        ) : (
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        ))}
      {query.isPending && <SkeletonRows rows={8} />}
      {policy && tab === "rules" && (
        <RulesTable
          policy={policy}
          shadowed={overrides.shadow}
          search={search}
          onSearch={(change) => void navigate({ search: (old) => ({ ...old, ...change }), replace: true })}
          onOverride={(rule) => {
            setDraft(withStanza(draft ?? overrides.active ?? "", rule));
            go("overrides");
          }}
        />
      )}
      {policy && tab === "overrides" && (
        <OverridesEditor
          text={draft ?? overrides.active ?? ""}
          changed={draft !== null}
          onChange={setDraft}
        />
      )}
      {tab === "versions" && (
        <Versions
          onEdit={(text) => {
            setDraft(text);
            go("overrides");
          }}
        />
      )}
      {tab === "shadow" && <ShadowView shadow={policy?.shadow ?? null} />}
    </Page>
  );
}

function Mode({ policy }: { policy: Policy }) {
  const active = policy.mode === "active";
  return (
    <>
      <StatePill
        look={{
          label: active ? `Version ${policy.version}` : "Built-in rules",
          tone: active ? "validating" : "healthy",
          glyph: active ? "ring" : "dot",
          about: active ? "The site's overrides are in force" : "No overrides are in force",
        }}
      />
      {policy.shadow && (
        <span className="inline-flex items-center gap-1.5 font-medium text-draining text-xs">
          <Glyph name="half" size={10} /> version {policy.shadow.version} in shadow
        </span>
      )}
    </>
  );
}

function Meta({ policy }: { policy: Policy }) {
  const overridden = policy.rules.filter((rule) => rule.overridden).length;
  return (
    <>
      <span>
        <span className="num">{policy.rules.length}</span> rules
        {overridden > 0 && <span className="num">, {overridden} overridden</span>}
      </span>
      {policy.shadow && (
        <span>
          shadow by {policy.shadow.actor}, <Age at={policy.shadow.created_at} />: {policy.shadow.reason}
        </span>
      )}
      <CopyText text={policy.digest} shown={policy.digest.slice(0, 12)} />
    </>
  );
}
