/** The sign-in page. The sign-in link has a one-time code in its fragment, which no server or log receives. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { problemOf } from "@/api/problem";
import { Logo } from "@/app/nav";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { ErrorNotice } from "@/ui/notice";
import { signIn } from "./queries";

const route = getRouteApi("/sign-in");

/** Remove the code from the address bar: a bookmark of it would not work. */
function takeFragmentCode(): string | null {
  const code = new URLSearchParams(window.location.hash.slice(1)).get("code");
  if (code)
    window.history.replaceState(window.history.state, "", window.location.pathname + window.location.search);
  return code;
}

export function SignIn() {
  const { next } = route.useSearch();
  const router = useRouter();
  const queryClient = useQueryClient();
  const [token, setToken] = useState("");
  const tried = useRef(false);
  const exchange = useMutation({
    mutationFn: (value: string) => signIn(value.trim()),
    onSuccess: () => {
      queryClient.clear();
      router.history.push(next ?? "/");
    },
  });

  useEffect(() => {
    document.title = "Sign in · Mainstay";
    if (tried.current) return; // StrictMode mounts twice; a one-time link works once
    tried.current = true;
    const fromLink = takeFragmentCode();
    if (fromLink) exchange.mutate(fromLink);
  }, [exchange]);

  function submit(event: FormEvent) {
    event.preventDefault();
    if (token.trim()) exchange.mutate(token);
  }

  const refused = exchange.isError && problemOf(exchange.error).status === 401;
  return (
    <main className="grid min-h-screen place-items-center px-4">
      <div className="w-full max-w-sm">
        <div className="mb-6 flex items-center gap-3">
          <Logo size={36} />
          <h1 className="font-semibold text-2xl tracking-[-0.02em]">Mainstay</h1>
        </div>
        <form onSubmit={submit} className="flex flex-col gap-4">
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
                autoComplete="current-password"
                spellCheck={false}
                value={token}
                onChange={(event) => setToken(event.target.value)}
                className="h-10 font-mono"
              />
            )}
          </Field>
          {exchange.isError &&
            (refused ? (
              <p role="alert" className="rounded-md bg-quarantined-soft px-3 py-2.5 text-sm">
                The sign-in was not valid. Print a new link with mainstay token login-link.{" "}
                {problemOf(exchange.error).detail}
              </p>
            ) : (
              <ErrorNotice error={exchange.error} />
            ))}
          <Button
            type="submit"
            kind="primary"
            busy={exchange.isPending}
            disabled={!token.trim()}
            className="h-10"
          >
            {exchange.isPending ? "Signing in…" : "Sign in"}
          </Button>
        </form>
      </div>
    </main>
  );
}
