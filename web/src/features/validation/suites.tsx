/** The suites: their benchmarks, defects, and expected times. */
import { useQuery } from "@tanstack/react-query";
import type { Suite } from "@/api/types";
import { age, humanize, plural, quantity } from "@/lib/format";
import { Panel } from "@/ui/panel";
import { QueryView } from "@/ui/query-view";
import { SkeletonRows } from "@/ui/skeleton";
import { Criteria } from "./criteria";
import { suitesQuery } from "./queries";

type Benchmark = Suite["benchmarks"][number];

export function Suites() {
  const suites = useQuery(suitesQuery());
  return (
    <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,2fr)_minmax(0,3fr)]">
      <Panel title="Suites" flush>
        <QueryView query={suites} loading={<SkeletonRows className="px-4 pb-4" />}>
          {(list) => (
            <ul>
              {list.map((suite) => (
                <SuiteRow key={suite.name} suite={suite} />
              ))}
            </ul>
          )}
        </QueryView>
      </Panel>
      <Criteria />
    </div>
  );
}

function SuiteRow({ suite }: { suite: Suite }) {
  const metrics = suite.benchmarks.reduce((sum, benchmark) => sum + benchmark.metrics.length, 0);
  const finds = [...new Set(suite.benchmarks.flatMap((benchmark) => benchmark.defects))];
  return (
    <li className="border-line border-t px-4 py-2.5 text-sm">
      <p className="flex items-baseline justify-between gap-4">
        <span className="font-medium">{humanize(suite.name)}</span>
        <span className="num text-ink-3 text-xs">about {age(suite.expected_seconds)}</span>
      </p>
      <p className="text-ink-2 text-xs">
        {finds.length > 0
          ? `Finds defects of ${finds.map((defect) => humanize(defect).toLowerCase()).join(", ")}.`
          : suite.benchmarks.map((benchmark) => benchmark.name).join(", ")}
      </p>
      <details className="mt-1 text-xs">
        <summary className="w-max cursor-pointer text-ink-3 hover:text-ink">
          {plural(suite.benchmarks.length, "benchmark")}, {plural(metrics, "metric")}
        </summary>
        <ul className="mt-1">
          {suite.benchmarks.map((benchmark) => (
            <BenchmarkRow key={benchmark.name} benchmark={benchmark} />
          ))}
        </ul>
      </details>
    </li>
  );
}

function BenchmarkRow({ benchmark }: { benchmark: Benchmark }) {
  return (
    <li className="border-line border-t py-1.5 first:border-t-0">
      <p className="flex items-baseline justify-between gap-4">
        <span className="font-mono text-ink">{benchmark.name}</span>
        <span className="num whitespace-nowrap text-ink-3">
          about {quantity(benchmark.expected_seconds, "s", false, 2)}
        </span>
      </p>
      {benchmark.catches && <p className="text-ink-2 first-letter:uppercase">{benchmark.catches}</p>}
      <p className="text-ink-3">
        {benchmark.defects.length > 0 &&
          `Finds ${benchmark.defects.map((d) => humanize(d).toLowerCase()).join(", ")}. `}
        Measures {benchmark.metrics.map((metric) => metric.name).join(", ")}.
      </p>
    </li>
  );
}
