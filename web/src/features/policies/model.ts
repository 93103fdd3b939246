/** Search and changes of rules. */
import type { PolicyRule } from "@/api/types";
import { evicts } from "@/features/incidents/recommended-action-model";
import type { PolicySearch } from "./search";

export const ruleKey = (rule: Pick<PolicyRule, "family" | "code">) => `${rule.family}.${rule.code}`;

/** Whether a rule matches a search: a number by code prefix, words by title, group, and note. */
export function matches(rule: PolicyRule, query: string): boolean {
  const q = query.trim().toLowerCase();
  if (q === "") return true;
  if (/^\d+$/.test(q)) return String(rule.code).startsWith(q);
  const text = `${rule.family} ${rule.code} ${rule.title} ${rule.group} ${rule.note}`.toLowerCase();
  return q.split(/\s+/).every((word) => text.includes(word));
}

/** Whether a rule has a meaning; others are found by search only. */
const saysSomething = (rule: PolicyRule) =>
  rule.overridden || rule.recommended_action !== "none" || rule.severity !== "info" || rule.note !== "";

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
        return evicts(rule.recommended_action);
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

/** Return the rules in a TOML text of overrides: `[xid.79]`, `[xid."11,25"]`, `[sxid."11021-11023"]`. */
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

/** Add a stanza with the current rule to a text, unless it has one. */
export function withStanza(toml: string, rule: PolicyRule): string {
  if (rulesIn(toml).has(ruleKey(rule))) return toml;
  const stanza = `# ${rule.title}\n[${rule.family}.${rule.code}]\nseverity = "${rule.severity}"\nrecommended_action = "${rule.recommended_action}"\n`;
  return toml.trim() === "" ? stanza : `${toml.trimEnd()}\n\n${stanza}`;
}

/** Format the change of a count: "+2", "−1", "no change". */
export function changeText(before: number, after: number): string {
  const change = after - before;
  if (change === 0) return "no change";
  return change > 0 ? `+${change}` : `−${-change}`;
}
