/** Create a local user, or change the roles and teams of a user. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import type { Role, User } from "@/api/types";
import { humanize } from "@/lib/format";
import { Field, Input } from "@/ui/field";
import { FormDialog } from "@/ui/form-dialog";
import { Select } from "@/ui/select";
import { roles } from "./model";
import { accessKeys, teamsQuery } from "./queries";

const NONE = "none";

function RoleSelect({
  label,
  role,
  onChange,
}: {
  label: string;
  role: Role | null;
  onChange: (role: Role | null) => void;
}) {
  const options = roles.map(({ value, about }) => ({ value, label: `${humanize(value)}: ${about}` }));
  return (
    <div className="flex flex-col items-start gap-1">
      <span className="font-medium text-ink text-sm">{label}</span>
      <Select
        label={label}
        value={role ?? NONE}
        onChange={(value) => onChange(roles.find((one) => one.value === value)?.value ?? null)}
        groups={[{ options: [{ value: NONE, label: "No access" }, ...options] }]}
      />
    </div>
  );
}

export function UserDialog({ user, onClose }: { user?: User; onClose: () => void }) {
  const queryClient = useQueryClient();
  const teams = useQuery(teamsQuery());
  const [name, setName] = useState("");
  const [displayName, setDisplayName] = useState("");
  const [password, setPassword] = useState("");
  const [role, setRole] = useState<Role | null>(user ? user.role : "viewer");
  const [member, setMember] = useState<string[]>(user?.teams ?? []);
  const [teamRole, setTeamRole] = useState<Role | null>(user?.team_role ?? "operator");
  const access = { role, teams: member, team_role: member.length > 0 ? teamRole : null };
  const run = () =>
    user
      ? unwrap(client.PUT("/v1/users/{name}/access", { params: { path: { name: user.name } }, body: access }))
      : unwrap(client.POST("/v1/users", { body: { name, display_name: displayName, password, ...access } }));
  return (
    <FormDialog
      title={user ? `Roles and teams of ${user.name}` : "New user"}
      about={
        user?.issuer
          ? "At the next sign-in, the groups at the provider decide again."
          : "A change takes effect at once."
      }
      verb={user ? "Save" : "Create user"}
      blocked={(!user && (!name.trim() || password.length < 15)) || (member.length > 0 && !teamRole)}
      run={run}
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: accessKeys.all });
        onClose();
      }}
    >
      {!user && (
        <>
          <Field label="Name" hint="Such as an e-mail address. It appears in every act of the user.">
            {(id) => (
              <Input
                id={id}
                autoFocus
                autoComplete="off"
                value={name}
                onChange={(e) => setName(e.target.value)}
              />
            )}
          </Field>
          <Field label="Display name">
            {(id) => <Input id={id} value={displayName} onChange={(e) => setDisplayName(e.target.value)} />}
          </Field>
          <Field label="Password" hint="At least 15 characters. The user can change it.">
            {(id) => (
              <Input
                id={id}
                type="password"
                autoComplete="new-password"
                value={password}
                onChange={(e) => setPassword(e.target.value)}
              />
            )}
          </Field>
        </>
      )}
      <RoleSelect label="Role in the whole fleet" role={role} onChange={setRole} />
      {(teams.data?.items.length ?? 0) > 0 && (
        <fieldset className="flex flex-col gap-1.5">
          <legend className="mb-1 font-medium text-ink text-sm">Teams</legend>
          {teams.data?.items.map((team) => (
            <label key={team.name} className="flex items-center gap-2 text-sm">
              <input
                type="checkbox"
                checked={member.includes(team.name)}
                onChange={(event) =>
                  setMember(
                    event.target.checked ? [...member, team.name] : member.filter((one) => one !== team.name),
                  )
                }
              />
              {team.name} <span className="text-ink-3">{team.jobs.join(", ")}</span>
            </label>
          ))}
        </fieldset>
      )}
      {member.length > 0 && (
        <RoleSelect label="Role for the jobs of the teams" role={teamRole} onChange={setTeamRole} />
      )}
    </FormDialog>
  );
}
