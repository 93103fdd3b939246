/** Validation: results, sweeps, suites, criteria, and related tools. */
import { getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
import { AdmissionPanel } from "@/features/admission/admission-panel";
import { Comparison } from "@/features/comparison/comparison";
import { Localizations } from "@/features/localization/localizations";
import { Plans } from "@/features/validation-plans/plans";
import { Button } from "@/ui/button";
import { CopyMenu, curl } from "@/ui/copy";
import { Page } from "@/ui/page";
import { Segmented } from "@/ui/segmented";
import { Results } from "./results";
import { RunValidation } from "./run-validation";
import type { ValidationTab } from "./search";
import { Suites } from "./suites";
import { Sweeps } from "./sweeps";

const route = getRouteApi("/shell/validation");
const tabs: { value: ValidationTab; label: string; title?: string }[] = [
  { value: "results", label: "Results" },
  { value: "sweeps", label: "Sweeps" },
  { value: "suites", label: "Suites and criteria" },
  { value: "localization", label: "Fault localization", title: "Find a slow node, link, or switch" },
  { value: "compare", label: "Before and after", title: "Compare results before and after an update" },
  {
    value: "admission",
    label: "Admission",
    title: "Check whether a job may start on nodes, and pause admission",
  },
  { value: "plans", label: "Validation plan", title: "Choose benchmarks for nodes before a job" },
];

export function ValidationPage() {
  const { tab = "results", node, sweep, plan, before, after, at } = route.useSearch();
  const navigate = route.useNavigate();
  const [running, setRunning] = useState(false);
  return (
    <Page
      title="Validation"
      actions={
        <>
          <CopyMenu
            commands={[
              curl("/v1/validations"),
              { label: "CLI, on a node", text: "mainstay validate --suite quick" },
            ]}
          />
          <Button kind="primary" icon="play" onClick={() => setRunning(true)}>
            Run validation
          </Button>
        </>
      }
    >
      <Segmented
        label="View"
        value={tab}
        onChange={(next) => void navigate({ search: (old) => ({ ...old, tab: next }), replace: true })}
        options={tabs}
        wrap
      />
      {tab === "results" && (
        <Results
          filter={{ node, sweep }}
          onClear={() => void navigate({ search: (old) => ({ ...old, node: undefined, sweep: undefined }) })}
        />
      )}
      {tab === "sweeps" && <Sweeps />}
      {tab === "suites" && <Suites />}
      {tab === "localization" && <Localizations />}
      {tab === "compare" && (
        <Comparison
          sides={{ before, after, node, at }}
          onSides={(sides) => void navigate({ search: (old) => ({ ...old, ...sides }) })}
        />
      )}
      {tab === "admission" && <AdmissionPanel />}
      {tab === "plans" && (
        <Plans id={plan} onPlan={(made) => void navigate({ search: (old) => ({ ...old, plan: made }) })} />
      )}
      <RunValidation open={running} onOpenChange={setRunning} />
    </Page>
  );
}
