/** Typed search parameters: a URL from another site may contain any value. */

export type RawSearch = Record<string, unknown>;

export function text(raw: RawSearch, key: string): string | undefined {
  const value = raw[key];
  if (typeof value === "number") return String(value);
  return typeof value === "string" && value !== "" ? value : undefined;
}

export function oneOf<T extends string>(raw: RawSearch, key: string, allowed: readonly T[]): T | undefined {
  return allowed.find((candidate) => candidate === raw[key]);
}

export function number(raw: RawSearch, key: string): number | undefined {
  const value = typeof raw[key] === "string" && raw[key] !== "" ? Number(raw[key]) : raw[key];
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

export function natural(raw: RawSearch, key: string): number | undefined {
  const value = number(raw, key);
  return value !== undefined && Number.isInteger(value) && value >= 0 ? value : undefined;
}

/** Return the path if it belongs to this site: a sign-in link must not lead to another site. */
export function localPath(raw: RawSearch, key: string): string | undefined {
  const value = text(raw, key);
  return value?.startsWith("/") && !value.startsWith("//") && !value.startsWith("/\\") ? value : undefined;
}
