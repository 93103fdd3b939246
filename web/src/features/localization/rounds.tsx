import type { LocalizationVerdict, Pair, Round } from "@/api/types";
import { plural } from "@/lib/format";
import { statusStyleOf } from "@/lib/status-styles";
import { Empty } from "@/ui/notice";
import { Panel } from "@/ui/panel";
import { StatePill } from "@/ui/state-pill";
import { pairKey, pairLook, pairOrder, roundText, slowLook, slowPairs, speedText } from "./model";

interface Props {
  rounds: Round[];
  verdict: LocalizationVerdict | null;
}

export function Rounds({ rounds, verdict }: Props) {
  const slow = slowPairs(verdict);
  // The newest round is first and open.
  const newest = [...rounds].sort((a, b) => b.number - a.number);
  return (
    <Panel title="Rounds" about={rounds.length > 0 ? plural(rounds.length, "round") : undefined} flush>
      {newest.length === 0 && (
        <div className="px-4 pb-3">
          <Empty title="No rounds yet." />
        </div>
      )}
      {newest.map((round, i) => (
        <details key={round.number} open={i === 0} className="border-line border-t">
          <summary className="cursor-pointer px-4 py-2.5 font-medium text-sm hover:bg-hover">
            {roundText(round)}
          </summary>
          <ul aria-label={`Pairs of round ${round.number}`} className="pb-2">
            {[...round.pairs].sort(pairOrder).map((pair) => (
              <PairRow
                key={`${pair.a}/${pair.b}/${pair.nics.join()}/${pair.via}`}
                pair={pair}
                slow={slow.has(pairKey(round.number, pair))}
              />
            ))}
          </ul>
        </details>
      ))}
    </Panel>
  );
}

function PairRow({ pair, slow }: { pair: Pair; slow: boolean }) {
  const nics = pair.nics.filter(Boolean);
  return (
    <li className="grid grid-cols-[7rem_minmax(0,1fr)_7rem_minmax(0,1fr)] items-baseline gap-x-4 px-4 py-1 text-sm max-md:grid-cols-[6rem_minmax(0,1fr)_auto]">
      <StatePill look={slow && pair.state === "ok" ? slowLook : statusStyleOf(pairLook, pair.state)} quiet />
      <span className="min-w-0">
        {pair.a} ↔ {pair.b}
        {(nics.length > 0 || pair.via) && (
          <span className="text-ink-3 text-xs">
            {" "}
            {nics.join(", ")}
            {pair.via && ` via ${pair.via}`}
          </span>
        )}
      </span>
      <span className="num text-right">{speedText(pair)}</span>
      <span className="min-w-0 text-ink-2 text-xs max-md:col-span-3">{pair.note}</span>
    </li>
  );
}
