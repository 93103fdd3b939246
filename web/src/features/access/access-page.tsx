/** Who may do what: users, teams, tokens, sessions, and the audit log. Everyone sees what is their own. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Me } from "@/api/types";
import { meQuery } from "@/features/auth/queries";
import { Button } from "@/ui/button";
import { Page } from "@/ui/page";
import { QueryView } from "@/ui/query-view";
import { AuditPanel } from "./audit-panel";
import { may } from "./model";
import { PasswordDialog } from "./password-dialog";
import { SessionsPanel } from "./sessions-panel";
import { TeamsPanel } from "./teams-panel";
import { TokensPanel } from "./tokens-panel";
import { UsersPanel } from "./users-panel";

export function AccessPage() {
  const query = useQuery(meQuery());
  const [changing, setChanging] = useState(false);
  const local = query.data?.user && query.data.sign_in === "password";
  return (
    <Page
      title="Access"
      meta="Users, teams, tokens, sessions, and the audit log."
      actions={local && <Button onClick={() => setChanging(true)}>Change password</Button>}
    >
      <QueryView query={query}>{(me) => <Body me={me} />}</QueryView>
      {changing && <PasswordDialog onClose={() => setChanging(false)} />}
    </Page>
  );
}

function Body({ me }: { me: Me }) {
  const admin = may(me, "admin");
  return (
    <>
      {admin && (
        <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
          <UsersPanel />
          <TeamsPanel />
        </div>
      )}
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
        <TokensPanel me={me} />
        <SessionsPanel />
      </div>
      {admin && <AuditPanel />}
    </>
  );
}
