/** The states of a query: loading, failed, loaded, and loaded but not refreshed. */
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ErrorNotice, StaleStrip } from "./notice";
import { SkeletonRows } from "./skeleton";

interface Props<T> {
  query: UseQueryResult<T, Error>;
  children: (data: T) => ReactNode;
  loading?: ReactNode;
}

export function QueryView<T>({ query, children, loading }: Props<T>) {
  const retry = () => void query.refetch();
  if (query.data === undefined) {
    if (query.isError) return <ErrorNotice error={query.error} onRetry={retry} />;
    return loading ?? <SkeletonRows />;
  }
  return (
    <>
      {query.isError && <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} onRetry={retry} />}
      {children(query.data)}
    </>
  );
}
