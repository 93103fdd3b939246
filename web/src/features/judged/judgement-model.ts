/** Detectors' own accounts in words. A detector that does not judge is no sign of health, and must not look like one. */
import { humanize, plural } from "@/lib/format";
import type { Look } from "@/lib/states";
import type { DetectorAccount, DetectorState } from "./types";

export const stances: Record<DetectorState, Look> = {
  judging: {
    label: "Judging",
    tone: "validating",
    glyph: "dot",
    about: "It has learned what is usual here and judges",
  },
  learning: {
    label: "Learning",
    tone: "draining",
    glyph: "half",
    about: "It does not judge yet: its silence says nothing",
  },
  abstains: {
    label: "Abstains",
    tone: "suspect",
    glyph: "triangle",
    about: "What it sees is too noisy or not comparable: its silence says nothing",
  },
  idle: {
    label: "Idle",
    tone: "unknown",
    glyph: "question",
    about: "It was given nothing to judge: its silence says nothing",
  },
};

/** What a reader has to know first stands first. */
const ORDER: readonly DetectorState[] = ["abstains", "learning", "judging", "idle"];

export function sortedAccounts(accounts: readonly DetectorAccount[]): DetectorAccount[] {
  const place = (account: DetectorAccount) => ORDER.indexOf(account.state); // a stance yet unknown: first
  return [...accounts].sort((a, b) => place(a) - place(b) || a.name.localeCompare(b.name));
}

/** "5 judge, 1 abstains, 2 learn" with the blind ones named by their count. */
export function headline(accounts: readonly DetectorAccount[]): string {
  const count = (state: DetectorState) => accounts.filter((a) => a.state === state).length;
  const parts = (
    [
      ["judging", "judge", "judges"],
      ["learning", "learn", "learns"],
      ["abstains", "abstain", "abstains"],
      ["idle", "idle", "idle"],
    ] as const
  )
    .map(([state, many, one]) => [count(state), count(state) === 1 ? one : many] as const)
    .filter(([n]) => n > 0)
    .map(([n, verb]) => (verb === "idle" ? `${n} ${n === 1 ? "is" : "are"} idle` : `${n} ${verb}`));
  return `of ${plural(accounts.length, "detector")}, ${parts.join(", ")}`;
}

/** The same sentence where a detector has none of its own. */
export const whyOf = (account: DetectorAccount): string =>
  account.why || (stances[account.state] ?? stances.idle).about;

export const nameOf = (account: Pick<DetectorAccount, "name">) => humanize(account.name);
