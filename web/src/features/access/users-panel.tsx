/** Users: their roles and teams, and how they sign in. */
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { problemOf } from "@/api/problem";
import type { User } from "@/api/types";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Icon } from "@/ui/icon";
import { Menu, MenuItem } from "@/ui/menu";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { useToast } from "@/ui/toast";
import { accessOf } from "./model";
import { accessKeys, usersQuery } from "./queries";
import { UserDialog } from "./user-dialog";
import { UserPasswordDialog } from "./user-password-dialog";

export function UsersPanel() {
  const query = useInfiniteQuery(usersQuery());
  const [creating, setCreating] = useState(false);
  return (
    <Panel title="Users" aside={<Button onClick={() => setCreating(true)}>New user</Button>} flush>
      <QueryView query={query}>
        {(data) => {
          const users = data.pages.flatMap((page) => page.items);
          return (
            <>
              {users.length === 0 && (
                <div className="px-4 pb-3">
                  <Empty title="No users yet.">
                    Until there are any, people act under the names of tokens.
                  </Empty>
                </div>
              )}
              <ul>
                {users.map((user) => (
                  <Row key={user.name} user={user} />
                ))}
              </ul>
              {query.hasNextPage && (
                <div className="border-line border-t px-4 py-2">
                  <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                    Show more
                  </Button>
                </div>
              )}
            </>
          );
        }}
      </QueryView>
      {creating && <UserDialog onClose={() => setCreating(false)} />}
    </Panel>
  );
}

function Row({ user }: { user: User }) {
  const [open, setOpen] = useState<"access" | "password">();
  const queryClient = useQueryClient();
  const toast = useToast();
  const disabled = user.disabled_at !== null;
  const change = useMutation({
    mutationFn: () => {
      const params = { path: { name: user.name } };
      return unwrap(
        disabled
          ? client.POST("/v1/users/{name}:enable", { params })
          : client.POST("/v1/users/{name}:disable", { params }),
      );
    },
    onSuccess: () =>
      toast(disabled ? `${user.name} can sign in again` : `${user.name} is signed out and disabled`),
    onError: (error) => toast(problemOf(error).detail ?? "The user was not changed"),
    onSettled: () => void queryClient.invalidateQueries({ queryKey: accessKeys.all }),
  });
  return (
    <li className="flex items-center gap-4 border-line border-t px-4 py-2 text-sm">
      <span className="min-w-0 flex-1">
        <span className="block break-words">
          <b className="font-medium">{user.name}</b>
          {user.display_name !== user.name && <span className="text-ink-2"> {user.display_name}</span>}
          {disabled && <span className="text-quarantined"> disabled</span>}
        </span>
        <span className="block break-words text-ink-2 text-xs">{accessOf(user)}</span>
        <span className="block break-words text-ink-3 text-xs">
          {user.issuer ? `Signs in through ${new URL(user.issuer).host}` : "Local user"}
          {user.signed_in_at === null ? (
            " · never signed in"
          ) : (
            <>
              {" · signed in "}
              <Age at={user.signed_in_at} />
            </>
          )}
        </span>
      </span>
      <Menu
        trigger={
          <Button aria-label={`Change ${user.name}`} busy={change.isPending}>
            Change
            <Icon name="down" size={13} />
          </Button>
        }
      >
        <MenuItem onSelect={() => setOpen("access")}>Roles and teams</MenuItem>
        {!user.issuer && <MenuItem onSelect={() => setOpen("password")}>Set password</MenuItem>}
        <MenuItem onSelect={() => change.mutate()}>{disabled ? "Enable" : "Disable"}</MenuItem>
      </Menu>
      {open === "access" && <UserDialog user={user} onClose={() => setOpen(undefined)} />}
      {open === "password" && <UserPasswordDialog name={user.name} onClose={() => setOpen(undefined)} />}
    </li>
  );
}
