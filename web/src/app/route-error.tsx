import type { ErrorComponentProps } from "@tanstack/react-router";
import { ErrorNotice } from "@/ui/notice";
import { Page } from "@/ui/page";

export function RouteError({ error, reset }: ErrorComponentProps) {
  return (
    <Page title="This page could not be shown">
      <ErrorNotice error={error} onRetry={reset} />
    </Page>
  );
}
