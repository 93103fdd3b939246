/** Providers of every page: query cache, tooltips, toasts. A 401 response leads to the sign-in page once. */
import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ProblemError } from "@/api/problem";
import { ToastProvider } from "@/ui/toast";
import { TooltipProvider } from "@/ui/tooltip";
import { router } from "./router";

function onRefused(error: Error): void {
  if (!(error instanceof ProblemError) || error.status !== 401) return;
  const { pathname, href } = router.state.location;
  if (pathname !== "/sign-in") void router.navigate({ to: "/sign-in", search: { next: href } });
}

const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError: onRefused }),
  mutationCache: new MutationCache({ onError: onRefused }),
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      gcTime: 600_000,
      // A retry does not change a 4xx response; it may repair a broken connection.
      retry: (count, error) => count < 2 && !(error instanceof ProblemError && error.status < 500),
      retryDelay: (attempt) => Math.min(8_000, 800 * 2 ** attempt),
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});

export function Providers({ children }: { children: ReactNode }) {
  return (
    <QueryClientProvider client={queryClient}>
      <TooltipProvider delayDuration={300}>
        <ToastProvider>{children}</ToastProvider>
      </TooltipProvider>
    </QueryClientProvider>
  );
}
