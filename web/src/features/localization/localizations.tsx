/** The fault localizations, newest first. */
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import type { Localization, LocalizationSummary } from "@/api/types";
import { names } from "@/features/validation/sweep-form";
import { plural } from "@/lib/format";
import { usePolling } from "@/lib/live";
import { statusStyleOf } from "@/lib/status-styles";
import { Age } from "@/ui/age";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input, TextArea } from "@/ui/field";
import { Empty, ErrorNotice, StaleStrip } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { Select } from "@/ui/select";
import { SkeletonRows } from "@/ui/skeleton";
import { StatePill } from "@/ui/state-pill";
import { Switch } from "@/ui/switch";
import { stateLook } from "./model";
import { localizationKeys, localizationsQuery } from "./queries";

export function Localizations() {
  const query = useInfiniteQuery({ ...localizationsQuery(), refetchInterval: usePolling(15_000) });
  const items = query.data?.pages.flatMap((page) => page.items);
  const [making, setMaking] = useState(false);
  return (
    <Panel
      title="Fault localizations"
      term="fault localization"
      about="pairs of nodes measure each other to find a slow node, link, or switch"
      flush
      aside={<Button onClick={() => setMaking(true)}>Localize a fault</Button>}
    >
      {query.isError && items && <StaleStrip since={query.dataUpdatedAt / 1000} error={query.error} />}
      {query.isError && !items && (
        <div className="px-4 pb-4">
          <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
        </div>
      )}
      {query.isPending && <SkeletonRows className="px-4 pb-4" />}
      {items?.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No fault localizations yet.">
            If a job is slow and no single node is at fault, measure idle nodes in pairs.
          </Empty>
        </div>
      )}
      <ul>
        {items?.map((item) => (
          <Row key={item.id} item={item} />
        ))}
      </ul>
      {query.hasNextPage && (
        <div className="px-4 py-3">
          <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Load more
          </Button>
        </div>
      )}
      {making && <NewLocalization onClose={() => setMaking(false)} />}
    </Panel>
  );
}

function Row({ item }: { item: LocalizationSummary }) {
  return (
    <li className="grid grid-cols-[7rem_minmax(0,1fr)_auto] items-baseline gap-x-4 gap-y-0.5 border-line border-t px-4 py-2.5 text-sm max-sm:grid-cols-1">
      <StatePill look={statusStyleOf(stateLook, item.state)} quiet />
      <div className="min-w-0">
        <Link
          to="/validation/fault-localizations/$id"
          params={{ id: item.id }}
          className="font-medium text-ink hover:underline"
        >
          {item.reason}
        </Link>
        <p className="text-ink-2 text-xs first-letter:uppercase">
          {plural(item.nodes.length, "node")}
          {item.partners.length > 0 && ` and ${plural(item.partners.length, "partner")}`}, {item.reason}
        </p>
      </div>
      <span className="text-ink-3 text-xs">
        <Age at={item.finished_at ?? item.created_at} />
      </span>
    </li>
  );
}

type Benchmark = Localization["benchmark"];
const benchmarks: { value: Benchmark; label: string }[] = [
  { value: "pair", label: "TCP" },
  { value: "perftest_pair", label: "RDMA (perftest)" },
  { value: "all_reduce_pair", label: "All-reduce over all GPUs" },
  { value: "all_to_all_pair", label: "All-to-all over all GPUs" },
];

function NewLocalization({ onClose }: { onClose: () => void }) {
  const [nodes, setNodes] = useState("");
  const [partners, setPartners] = useState("");
  const [why, setWhy] = useState("");
  const [benchmark, setBenchmark] = useState<Benchmark>("pair");
  const [allowOccupied, setAllowOccupied] = useState(false);
  const [headers] = useState(idempotencyKey);
  const queryClient = useQueryClient();
  const navigate = useNavigate();
  const asked = names(nodes);
  const make = useMutation({
    mutationFn: () => {
      const with_ = names(partners);
      const body = {
        nodes: asked,
        reason: why.trim(),
        partners: with_.length > 0 ? with_ : null,
        benchmark,
        allow_occupied: allowOccupied,
      };
      return unwrap(client.POST("/v1/fault-localizations", { headers, body }));
    },
    onSuccess: (made) => {
      void queryClient.invalidateQueries({ queryKey: localizationKeys.all });
      onClose();
      void navigate({ to: "/validation/fault-localizations/$id", params: { id: made.id } });
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (asked.length > 0 && why.trim()) make.mutate();
  }

  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Localize a fault"
      about="Pairs of these nodes measure each other in rounds. The nodes must be idle: the measurement uses their links for minutes."
    >
      <form onSubmit={submit} className="flex flex-col gap-4">
        <Field label="Nodes" hint="Names, separated by spaces, commas, or lines.">
          {(id) => (
            <TextArea
              id={id}
              required
              value={nodes}
              onChange={(event) => setNodes(event.target.value)}
              className="font-mono"
            />
          )}
        </Field>
        <Field label="Reason" hint="Stored with the verdict.">
          {(id) => <Input id={id} required value={why} onChange={(event) => setWhy(event.target.value)} />}
        </Field>
        <Field
          label="Known-good partners"
          hint="Leave empty to use idle nodes of the same cohorts that passed their last validation."
        >
          {(id) => (
            <Input
              id={id}
              value={partners}
              onChange={(event) => setPartners(event.target.value)}
              className="font-mono"
            />
          )}
        </Field>
        <p className="flex items-center gap-3 text-ink-2 text-sm">
          <Select
            label="Benchmark"
            value={benchmark}
            onChange={(value) => setBenchmark(value as Benchmark)}
            groups={[{ options: benchmarks }]}
          />
          What a pair measures
        </p>
        <p className="flex items-center gap-3 text-ink-2 text-sm">
          <Switch label="Allow occupied" on={allowOccupied} onChange={setAllowOccupied} />
          Measure even if jobs run on the nodes
        </p>
        {make.isError && <ErrorNotice error={make.error} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button
            type="submit"
            kind="primary"
            busy={make.isPending}
            disabled={asked.length === 0 || !why.trim()}
          >
            Measure
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
