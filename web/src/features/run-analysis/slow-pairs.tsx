import { bytes, duration, quantity } from "@/lib/format";
import type { Pair } from "./delays-model";

/** The slowest transfers as a table. */
export function SlowPairs({ pairs }: { pairs: Pair[] }) {
  return (
    <table className="w-full text-sm" aria-label="Slowest transfers">
      <thead>
        <tr className="border-line border-b text-left text-ink-3 text-xs">
          <th scope="col" className="h-7 font-medium">
            Slowest
          </th>
          <th scope="col" className="px-2 text-right font-medium">
            Time
          </th>
          <th scope="col" className="px-2 text-right font-medium max-sm:hidden">
            Bytes
          </th>
          <th scope="col" className="px-2 text-right font-medium max-sm:hidden">
            Rate
          </th>
          <th scope="col" className="text-right font-medium">
            Relative
          </th>
        </tr>
      </thead>
      <tbody>
        {pairs.map((pair) => (
          <tr key={`${pair.source}>${pair.destination}`} className="border-line border-b last:border-b-0">
            <th scope="row" className="num h-7 whitespace-nowrap text-left font-medium">
              rank {pair.source} → {pair.destination}
            </th>
            <td className="num whitespace-nowrap px-2 text-right">{duration(pair.seconds)}</td>
            <td className="num whitespace-nowrap px-2 text-right text-ink-2 max-sm:hidden">
              {bytes(pair.bytes)}
            </td>
            <td className="num whitespace-nowrap px-2 text-right text-ink-2 max-sm:hidden">{rate(pair)}</td>
            <td className="num whitespace-nowrap text-right">{pair.alike.toFixed(2)} ×</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export const rate = (pair: Pair) =>
  pair.bytes === null || pair.seconds <= 0 ? "–" : quantity(pair.bytes / pair.seconds, "B", true);
