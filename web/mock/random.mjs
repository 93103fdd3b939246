// Numbers that look like measurements and are the same on every run.

/** A pure hash of integers to [0, 1). */
export function noise(...keys) {
  let h = 2166136261;
  for (const key of keys) {
    for (const c of String(key)) h = Math.imul(h ^ c.charCodeAt(0), 16777619);
    h = Math.imul(h ^ (h >>> 15), 2246822507);
  }
  h ^= h >>> 13;
  h = Math.imul(h, 3266489909);
  return ((h ^ (h >>> 16)) >>> 0) / 4294967296;
}

/** Smooth in t: a value that wanders, for a line that could have been measured. */
export function wander(key, t, period) {
  const i = Math.floor(t / period);
  const f = t / period - i;
  const s = f * f * (3 - 2 * f);
  return noise(key, i) * (1 - s) + noise(key, i + 1) * s;
}

/** UUIDv7-like text from a time and a name. */
export function uuid(time, name) {
  const ms = Math.floor(time * 1000)
    .toString(16)
    .padStart(12, "0");
  const hex = Array.from({ length: 20 }, (_, i) => Math.floor(noise(name, i) * 16).toString(16)).join("");
  return `${ms.slice(0, 8)}-${ms.slice(8, 12)}-7${hex.slice(0, 3)}-8${hex.slice(3, 6)}-${hex.slice(6, 18)}`;
}
