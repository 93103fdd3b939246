/** Teams: which jobs are theirs, and which groups at the provider make members. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { Team } from "@/api/types";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { FormDialog } from "@/ui/form-dialog";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { useToast } from "@/ui/toast";
import { wordsOf } from "./model";
import { accessKeys, teamsQuery } from "./queries";

export function TeamsPanel() {
  const query = useQuery(teamsQuery());
  const [creating, setCreating] = useState(false);
  return (
    <Panel
      title="Teams"
      about="people who share jobs"
      aside={<Button onClick={() => setCreating(true)}>New team</Button>}
      flush
    >
      <QueryView query={query}>
        {(data) =>
          data.items.length === 0 ? (
            <div className="px-4 pb-3">
              <Empty title="No teams.">A team sees its own jobs and their incidents, and nothing else.</Empty>
            </div>
          ) : (
            <ul>
              {data.items.map((team) => (
                <Row key={team.name} team={team} />
              ))}
            </ul>
          )
        }
      </QueryView>
      {creating && <TeamDialog onClose={() => setCreating(false)} />}
    </Panel>
  );
}

function Row({ team }: { team: Team }) {
  const [changing, setChanging] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const queryClient = useQueryClient();
  const toast = useToast();
  const remove = useMutation({
    mutationFn: () => unwrap(client.DELETE("/v1/teams/{name}", { params: { path: { name: team.name } } })),
    onError: (error) => toast(problemOf(error).detail ?? "The team was not deleted"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: accessKeys.all }),
  });
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-1 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <b className="block break-words font-medium">{team.name}</b>
        <span className="block break-words text-ink-2 text-xs">
          Jobs: <span className="font-mono">{team.jobs.join(" ") || "none"}</span>
        </span>
        {team.groups.length > 0 && (
          <span className="block break-words text-ink-3 text-xs">Groups: {team.groups.join(", ")}</span>
        )}
      </span>
      <Button onClick={() => setChanging(true)} aria-label={`Edit ${team.name}`}>
        Edit
      </Button>
      <Button
        kind="ghost"
        icon="close"
        onClick={() => setDeleting(true)}
        aria-label={`Delete ${team.name}`}
      />
      {changing && <TeamDialog team={team} onClose={() => setChanging(false)} />}
      {deleting && (
        <FormDialog
          title={`Delete team ${team.name}`}
          about="Its tokens are revoked. Its members keep what their other roles allow."
          verb="Delete team"
          danger
          run={() => remove.mutateAsync()}
          onClose={() => setDeleting(false)}
          onDone={() => setDeleting(false)}
        />
      )}
    </li>
  );
}

function TeamDialog({ team, onClose }: { team?: Team; onClose: () => void }) {
  const queryClient = useQueryClient();
  const [name, setName] = useState(team?.name ?? "");
  const [jobs, setJobs] = useState(team?.jobs.join(" ") ?? "");
  const [groups, setGroups] = useState(team?.groups.join(", ") ?? "");
  const body = {
    jobs: wordsOf(jobs),
    groups: groups
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean),
  };
  return (
    <FormDialog
      title={team ? `Team ${team.name}` : "New team"}
      verb={team ? "Save" : "Create team"}
      blocked={!name.trim()}
      run={() => unwrap(client.PUT("/v1/teams/{name}", { params: { path: { name: name.trim() } }, body }))}
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: accessKeys.all });
        onClose();
      }}
    >
      {!team && (
        <Field label="Name">
          {(id) => <Input id={id} autoFocus value={name} onChange={(event) => setName(event.target.value)} />}
        </Field>
      )}
      <Field
        label="Jobs"
        hint="IDs of jobs, separated by spaces. One that ends in * stands for all that begin so."
      >
        {(id) => <Input id={id} value={jobs} onChange={(event) => setJobs(event.target.value)} />}
      </Field>
      <Field
        label="Groups"
        hint="Groups at the OpenID Connect provider, separated by commas. Their members belong to the team."
      >
        {(id) => <Input id={id} value={groups} onChange={(event) => setGroups(event.target.value)} />}
      </Field>
    </FormDialog>
  );
}
