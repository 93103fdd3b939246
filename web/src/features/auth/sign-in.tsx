/** The sign-in page. The sign-in link has a one-time code in its fragment, which no server or log receives. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useRouter } from "@tanstack/react-router";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { problemOf } from "@/api/problem";
import { Logo } from "@/app/nav";
import { ErrorNotice } from "@/ui/notice";
import { signIn, signInOptionsQuery } from "./queries";
import { PasswordForm, TokenForm } from "./sign-in-forms";
import { refusals } from "./sign-in-model";

const route = getRouteApi("/sign-in");

/** Remove the code from the address bar: a bookmark of it would not work. */
function takeFragmentCode(): string | null {
  const code = new URLSearchParams(window.location.hash.slice(1)).get("code");
  if (code)
    window.history.replaceState(window.history.state, "", window.location.pathname + window.location.search);
  return code;
}

export function SignIn() {
  const { next, refused } = route.useSearch();
  const router = useRouter();
  const queryClient = useQueryClient();
  const options = useQuery(signInOptionsQuery());
  const [withToken, setWithToken] = useState(false);
  const tried = useRef(false);
  const attempt = useMutation({
    mutationFn: (signIn: () => Promise<unknown>) => signIn(),
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
    if (!fromLink) return;
    setWithToken(true);
    attempt.mutate(() => signIn(fromLink));
  }, [attempt]);

  const people = Boolean(options.data?.users || options.data?.openid);
  const byToken = withToken || !people;
  const denied = attempt.isError && problemOf(attempt.error).status === 401;
  return (
    <main className="grid min-h-screen place-items-center px-4">
      <div className="w-full max-w-sm">
        <div className="mb-6 flex items-center gap-3">
          <Logo size={36} />
          <h1 className="font-semibold text-2xl tracking-[-0.02em]">Mainstay</h1>
        </div>
        <div className="flex flex-col gap-4">
          {refused && !attempt.isError && <Refusal>{refusals[refused] ?? refusals.openid_failed}</Refusal>}
          {attempt.isError &&
            (denied ? (
              <Refusal>
                The sign-in was not valid. {problemOf(attempt.error).detail}
                {byToken && ". Print a new link with mainstay token login-link."}
              </Refusal>
            ) : (
              <ErrorNotice error={attempt.error} />
            ))}
          {options.data?.openid && (
            <a
              href={`/v1/auth/openid?next=${encodeURIComponent(next ?? "/")}`}
              className="inline-flex h-10 items-center justify-center rounded-md bg-accent px-3 font-medium text-accent-ink text-sm hover:brightness-110"
            >
              Sign in with {options.data.openid}
            </a>
          )}
          {options.data?.users && !byToken && <PasswordForm attempt={attempt} />}
          {byToken && options.isFetched && <TokenForm attempt={attempt} />}
          {people && (
            <button
              type="button"
              onClick={() => setWithToken(!withToken)}
              className="self-start text-ink-2 text-sm underline"
            >
              {byToken ? "Sign in as a user" : "Sign in with a token"}
            </button>
          )}
        </div>
      </div>
    </main>
  );
}

function Refusal({ children }: { children: ReactNode }) {
  return (
    <p role="alert" className="rounded-md bg-quarantined-soft px-3 py-2.5 text-sm">
      {children}
    </p>
  );
}
