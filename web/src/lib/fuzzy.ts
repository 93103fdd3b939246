/** Rank candidates by a query: all letters in order, better at word starts and when adjacent. */
export function fuzzyScore(query: string, text: string): number {
  const q = query.toLowerCase().replaceAll(/\s+/g, "");
  const t = text.toLowerCase();
  if (q === "") return 0;
  let score = 0;
  let at = -1;
  for (const letter of q) {
    const next = t.indexOf(letter, at + 1);
    if (next < 0) return -1;
    const wordStart = next === 0 || /[^a-z0-9]/.test(t[next - 1] as string);
    score += next === at + 1 ? 3 : wordStart ? 2 : 0;
    score -= Math.min(2, (next - at - 1) * 0.05);
    at = next;
  }
  return Math.max(0.01, score + (t.startsWith(q) ? 5 : 0));
}

export function fuzzyFilter<T>(
  items: readonly T[],
  query: string,
  text: (item: T) => string,
  most: number,
): T[] {
  if (query.trim() === "") return items.slice(0, most);
  return items
    .map((item) => ({ item, score: fuzzyScore(query, text(item)) }))
    .filter((scored) => scored.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, most)
    .map((scored) => scored.item);
}
