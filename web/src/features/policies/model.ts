/** Rules as a person finds and changes them. Pure. */
import type { PolicyRule } from "@/api/types";
import { evicts } from "@/features/incidents/remedy-model";
import type { PolicySearch } from "./search";

export const ruleKey = (rule: Pick<PolicyRule, "family" | "code">) => `${rule.family}.${rule.code}`;

/** A number finds that code first and codes that begin with it; words find titles, groups and notes. */
export function matches(rule: PolicyRule, query: string): boolean {
  const q = query.trim().toLowerCase();
  if (q === "") return true;
  if (/^\d+$/.test(q)) return String(rule.code).startsWith(q);
  const text = `${rule.family} ${rule.code} ${rule.title} ${rule.group} ${rule.note}`.toLowerCase();
  return q.split(/\s+/).every((word) => text.includes(word));
}

/** Many numbers are unused or only for the record; they are found by search. */
const saysSomething = (rule: PolicyRule) =>
  rule.overridden || rule.remedy !== "none" || rule.severity !== "info" || rule.note !== "";

export function chosenRules(
  rules: readonly PolicyRule[],
  search: Pick<PolicySearch, "q" | "only">,
): PolicyRule[] {
  return rules.filter((rule) => {
    if (!matches(rule, search.q ?? "")) return false;
    switch (search.only) {
      case "overridden":
        return rule.overridden;
      case "evicts":
        return evicts(rule.remedy);
      case "xid":
      case "sxid":
        return rule.family === search.only;
      case "all":
        return true;
      default:
        return search.q ? true : saysSomething(rule);
    }
  });
}

const HEADING = /^\s*\[\s*(xid|sxid)\s*\.\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))/gm;

/** The rules that a TOML text of overrides speaks of: `[xid.79]`, `[xid."11,25"]`, `[sxid."11021-11023"]`. */
export function rulesIn(toml: string): Set<string> {
  const found = new Set<string>();
  for (const match of toml.matchAll(HEADING)) {
    const family = match[1];
    for (const part of (match[2] ?? match[3] ?? match[4] ?? "").split(",")) {
      const [from, to] = part.trim().split("-").map(Number);
      if (from === undefined || Number.isNaN(from)) found.add(`${family}.${part.trim()}`);
      else
        for (let code = from; code <= Math.min(to ?? from, from + 1000); code += 1)
          found.add(`${family}.${code}`);
    }
  }
  return found;
}

/** A stanza that begins as the rule stands, to be changed by hand; a text that has it already is left alone. */
export function withStanza(toml: string, rule: PolicyRule): string {
  if (rulesIn(toml).has(ruleKey(rule))) return toml;
  const stanza = `# ${rule.title}\n[${rule.family}.${rule.code}]\nseverity = "${rule.severity}"\nremedy = "${rule.remedy}"\n`;
  return toml.trim() === "" ? stanza : `${toml.trimEnd()}\n\n${stanza}`;
}

/** "+2", "−1", "0": how a count would change. */
export function changeText(before: number, after: number): string {
  const change = after - before;
  if (change === 0) return "no change";
  return change > 0 ? `+${change}` : `−${-change}`;
}
