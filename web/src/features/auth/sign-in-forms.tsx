/** The two forms of the sign-in page: a user's password, or an access token. */
import type { UseMutationResult } from "@tanstack/react-query";
import { useState } from "react";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { signIn, signInAs } from "./queries";

interface Props {
  attempt: UseMutationResult<unknown, Error, () => Promise<unknown>>;
}

export function PasswordForm({ attempt }: Props) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  return (
    <form
      className="flex flex-col gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (name.trim() && password) attempt.mutate(() => signInAs(name.trim(), password));
      }}
    >
      <Field label="Name">
        {(id) => (
          <Input
            id={id}
            autoComplete="username"
            spellCheck={false}
            value={name}
            onChange={(event) => setName(event.target.value)}
            className="h-10"
          />
        )}
      </Field>
      <Field label="Password">
        {(id) => (
          <Input
            id={id}
            type="password"
            autoComplete="current-password"
            value={password}
            onChange={(event) => setPassword(event.target.value)}
            className="h-10"
          />
        )}
      </Field>
      <Submit busy={attempt.isPending} disabled={!name.trim() || !password} />
    </form>
  );
}

export function TokenForm({ attempt }: Props) {
  const [token, setToken] = useState("");
  return (
    <form
      className="flex flex-col gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (token.trim()) attempt.mutate(() => signIn(token.trim()));
      }}
    >
      <Field
        label="Access token"
        hint={
          <>
            A sign-in link works once. Print one with{" "}
            <code className="font-mono">mainstay token login-link</code>.
          </>
        }
      >
        {(id) => (
          <Input
            id={id}
            type="password"
            autoComplete="off"
            spellCheck={false}
            value={token}
            onChange={(event) => setToken(event.target.value)}
            className="h-10 font-mono"
          />
        )}
      </Field>
      <Submit busy={attempt.isPending} disabled={!token.trim()} />
    </form>
  );
}

function Submit({ busy, disabled }: { busy: boolean; disabled: boolean }) {
  return (
    <Button type="submit" kind="primary" busy={busy} disabled={disabled} className="h-10">
      {busy ? "Signing in…" : "Sign in"}
    </Button>
  );
}
