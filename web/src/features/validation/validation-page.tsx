/** Validation: what was proved about the nodes, what will be, and by which suites. */
import { getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
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
const tabs: { value: ValidationTab; label: string }[] = [
  { value: "results", label: "Results" },
  { value: "sweeps", label: "Sweeps" },
  { value: "suites", label: "Suites and criteria" },
];

export function ValidationPage() {
  const { tab = "results", node, sweep } = route.useSearch();
  const navigate = route.useNavigate();
  const [running, setRunning] = useState(false);
  return (
    <Page
      title="Validation"
      actions={
        <>
          <Segmented
            label="View"
            value={tab}
            onChange={(next) => void navigate({ search: (old) => ({ ...old, tab: next }), replace: true })}
            options={tabs}
          />
          <CopyMenu
            commands={[
              curl("/v1/validations"),
              { label: "CLI, on a node", text: "mainstay validate --suite quick" },
            ]}
          />
          <Button kind="primary" icon="play" onClick={() => setRunning(true)}>
            Run now
          </Button>
        </>
      }
    >
      {tab === "results" && (
        <Results
          filter={{ node, sweep }}
          onClear={() => void navigate({ search: (old) => ({ ...old, node: undefined, sweep: undefined }) })}
        />
      )}
      {tab === "sweeps" && <Sweeps />}
      {tab === "suites" && <Suites />}
      <RunValidation open={running} onOpenChange={setRunning} />
    </Page>
  );
}
