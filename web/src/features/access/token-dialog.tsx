/** Create a token; its secret is shown once, here. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Me, Scope } from "@/api/types";
import { CopyButton } from "@/ui/copy";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { FormDialog } from "@/ui/form-dialog";
import { Select } from "@/ui/select";
import { scopes } from "./model";
import { accessKeys, teamsQuery } from "./queries";

const FLEET = " fleet"; // no team can have this name
const days = ["1", "7", "30", "90", "365"];

export function TokenDialog({ me, onClose }: { me: Me; onClose: () => void }) {
  const queryClient = useQueryClient();
  const admin = me.scopes.includes("admin");
  const teams = useQuery({ ...teamsQuery(), enabled: admin });
  const [name, setName] = useState("");
  const [scope, setScope] = useState<Scope>("read");
  const [personal, setPersonal] = useState(!admin);
  const [team, setTeam] = useState(FLEET);
  const [life, setLife] = useState("90");
  const [secret, setSecret] = useState<string>();

  if (secret)
    return (
      <Dialog open onOpenChange={onClose} title={`Token ${name}`} about="The secret is shown only this once.">
        <p className="mb-3 break-all rounded-md bg-sunken px-3 py-2 font-mono text-sm">{secret}</p>
        <CopyButton text={secret} label="Copy" />
      </Dialog>
    );
  return (
    <FormDialog
      title="New token"
      verb="Create token"
      blocked={!name.trim()}
      run={async () => {
        const made = await unwrap(
          client.POST("/v1/auth/tokens", {
            body: {
              name: name.trim(),
              scopes: [scope],
              personal,
              team: team === FLEET ? null : team,
              expires_in: life === "never" ? null : Number(life) * 86_400,
              kind: "user",
              any_job: false,
            },
          }),
        );
        setSecret(made.token);
      }}
      onClose={onClose}
      onDone={() => void queryClient.invalidateQueries({ queryKey: accessKeys.all })}
    >
      <Field label="Name" hint="Name the token by its purpose.">
        {(id) => <Input id={id} autoFocus value={name} onChange={(event) => setName(event.target.value)} />}
      </Field>
      <div className="flex flex-wrap gap-3">
        <Select
          label="Scope"
          value={scope}
          onChange={(value) => setScope(scopes.find((one) => one === value) ?? "read")}
          groups={[{ label: "Scope", options: scopes.map((value) => ({ value, label: value })) }]}
        />
        <Select
          label="Lifetime"
          value={life}
          onChange={setLife}
          groups={[
            {
              label: "Lifetime",
              options: [
                ...days.map((value) => ({ value, label: value === "1" ? "1 day" : `${value} days` })),
                { value: "never", label: "never expires" },
              ],
            },
          ]}
        />
        {(teams.data?.items.length ?? 0) > 0 && (
          <Select
            label="Jobs"
            value={team}
            onChange={setTeam}
            groups={[
              {
                label: "For",
                options: [
                  { value: FLEET, label: "the whole fleet" },
                  ...(teams.data?.items ?? []).map((one) => ({ value: one.name, label: `team ${one.name}` })),
                ],
              },
            ]}
          />
        )}
      </div>
      {admin && me.user && (
        <label className="flex items-center gap-2 text-sm">
          <input type="checkbox" checked={personal} onChange={(event) => setPersonal(event.target.checked)} />
          Personal: it stands for {me.user} and never does more
        </label>
      )}
    </FormDialog>
  );
}
