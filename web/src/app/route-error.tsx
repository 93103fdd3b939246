import type { ErrorComponentProps } from "@tanstack/react-router";
import { ErrorNotice } from "@/ui/notice";
import { Page } from "@/ui/page";

export function RouteError({ error, reset }: ErrorComponentProps) {
  return (
    <Page title="This page failed">
      <ErrorNotice error={error} onRetry={reset} />
    </Page>
  );
}
