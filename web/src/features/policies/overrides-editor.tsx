/** The editor of a site's overrides, with a test against stored errors. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";
import { client, unwrap } from "@/api/client";
import { cx } from "@/lib/cx";
import { Button } from "@/ui/button";
import { ErrorNotice } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Segmented } from "@/ui/segmented";
import { TestResult } from "./test-result";
import { PushOverrides } from "./upload-overrides";

const EXAMPLE = `# Only what differs from the built-in rule is written; any field of any code.
[xid.79]
recommended_action = "inspect_node"
note = "Riser cables of this site: inspect the slot first."`;

const windows = [
  { value: "1", label: "1 day" },
  { value: "7", label: "7 days" },
  { value: "30", label: "30 days" },
] as const;

interface Props {
  text: string;
  changed: boolean;
  onChange: (text: string) => void;
}

export function OverridesEditor({ text, changed, onChange }: Props) {
  const field = useId();
  const hint = useId();
  const [days, setDays] = useState<(typeof windows)[number]["value"]>("30");
  const [pushing, setPushing] = useState<"shadow" | "active" | null>(null);
  const test = useMutation({
    mutationFn: (overrides: string) =>
      unwrap(
        client.POST("/v1/policies/xid:test", {
          body: { overrides, since: Date.now() / 1000 - Number(days) * 86_400 },
        }),
      ),
  });
  const tested = test.isSuccess && test.variables === text;

  function submit(event: FormEvent) {
    event.preventDefault();
    test.mutate(text);
  }

  return (
    <div className="grid items-start gap-4 xl:grid-cols-2">
      <Panel title="Overrides" about={changed ? "changed, not uploaded" : "in force"}>
        <form onSubmit={submit} className="flex flex-col gap-3">
          <label htmlFor={field} className="sr-only">
            Overrides in TOML
          </label>
          <textarea
            id={field}
            aria-describedby={hint}
            value={text}
            placeholder={EXAMPLE}
            spellCheck={false}
            maxLength={262_144}
            rows={Math.min(28, Math.max(14, text.split("\n").length + 1))}
            onChange={(event) => onChange(event.target.value)}
            className="w-full rounded-md border border-line-strong bg-sunken px-3 py-2 font-mono text-ink text-xs leading-5 placeholder:text-ink-3"
          />
          <p id={hint} className="text-ink-3 text-xs">
            TOML that overrides fields of the built-in rules. To start from a rule, use its Override button.
          </p>
          <div className="flex flex-wrap items-center gap-2">
            <Segmented label="History" value={days} onChange={setDays} options={windows} />
            <Button type="submit" icon="clock" busy={test.isPending}>
              Test on history
            </Button>
            <span className="ml-auto flex flex-wrap justify-end gap-2">
              <Button onClick={() => setPushing("active")} disabled={text.trim() === ""}>
                Activate now
              </Button>
              <Button kind="primary" onClick={() => setPushing("shadow")} disabled={text.trim() === ""}>
                Upload as shadow
              </Button>
            </span>
          </div>
        </form>
      </Panel>
      <Panel title="Test results" about="a test activates nothing">
        {test.isError && <ErrorNotice error={test.error} />}
        {!test.data && !test.isError && (
          <p className="text-ink-3 text-sm">
            The test shows the findings and drains that these overrides would have changed, for all stored
            errors.
          </p>
        )}
        {test.data && !test.isError && (
          <div className={cx(!tested && "opacity-60")}>
            {!tested && <p className="pb-2 text-suspect text-xs">The text changed after this test.</p>}
            <TestResult result={test.data} />
          </div>
        )}
      </Panel>
      {pushing && (
        <PushOverrides text={text} mode={pushing} tested={tested} onClose={() => setPushing(null)} />
      )}
    </div>
  );
}
