/** What users and tokens may do, in words. */
import type { AccessToken, AuditEntry, Me, Role, Scope, User } from "@/api/types";
import { humanize } from "@/lib/format";

export const roles: { value: Role; about: string }[] = [
  { value: "viewer", about: "reads" },
  { value: "responder", about: "also acknowledges incidents and silences messages" },
  { value: "operator", about: "also drains, validates, and repairs nodes" },
  { value: "admin", about: "also manages users, tokens, and policies" },
];

export const scopes: Scope[] = ["read", "respond", "act", "report", "admin"];

/** Whether someone may do something in the whole fleet. */
export function may(me: Me | undefined, scope: Scope): boolean {
  if (!me) return false;
  const implied: Record<Scope, Scope[]> = {
    read: ["read", "report", "respond", "act", "admin"],
    report: ["report", "admin"],
    respond: ["respond", "act", "admin"],
    act: ["act", "admin"],
    admin: ["admin"],
  };
  return me.scopes.some((held) => implied[scope].includes(held));
}

export function accessOf(user: User): string {
  const parts = user.role ? [`${humanize(user.role)} of the fleet`] : [];
  if (user.team_role && user.teams.length > 0)
    parts.push(`${humanize(user.team_role)} of ${user.teams.join(", ")}`);
  return parts.join(" · ") || "No access";
}

/** What a token is bound to. */
export function boundTo(token: AccessToken): string {
  const parts = [
    token.user && `user ${token.user}`,
    token.node && `node ${token.node}`,
    token.job && `job ${token.job}`,
    token.team && `team ${token.team}`,
    token.racks && `racks ${token.racks.join(", ")}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Words separated by spaces or commas. */
export const wordsOf = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

function shown(value: unknown): string {
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The fields of an act that are not empty, on one line. */
export function detailOf(entry: AuditEntry): string {
  const told = Object.entries(entry.detail).filter(
    ([, value]) => value !== null && value !== "" && !(Array.isArray(value) && value.length === 0),
  );
  return told.map(([name, value]) => `${humanize(name)}: ${shown(value)}`).join(" · ");
}
