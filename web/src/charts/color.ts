/** Colors for canvases: tokens resolved for the current theme, and one perceptually even scale for values. */

export type Rgb = readonly [number, number, number];

// "mako" (seaborn): even in lightness, and readable with every common color-vision deficiency.
const MAKO: readonly Rgb[] = [
  [11, 4, 5],
  [37, 21, 36],
  [53, 40, 76],
  [62, 61, 119],
  [57, 90, 149],
  [53, 120, 160],
  [54, 147, 168],
  [65, 174, 173],
  [108, 199, 176],
  [171, 220, 190],
  [222, 244, 228],
];

/** Return the color of a ratio from 0 to 1. More is brighter in the dark theme and darker in the light theme. */
export function scaleColor(share: number, dark: boolean): Rgb {
  // The ends of the scale are unused: they are close to the page background.
  const low = 0.2;
  const high = 0.97;
  const clamped = Math.min(1, Math.max(0, share));
  const at = (dark ? low + (high - low) * clamped : high - (high - low) * clamped) * (MAKO.length - 1);
  const index = Math.min(MAKO.length - 2, Math.floor(at));
  const a = MAKO[index] as Rgb;
  const b = MAKO[index + 1] as Rgb;
  const t = at - index;
  return [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
}

export const css = ([r, g, b]: Rgb, alpha = 1) =>
  `rgb(${r.toFixed(0)} ${g.toFixed(0)} ${b.toFixed(0)} / ${alpha})`;

export function pack([r, g, b]: Rgb, alpha = 255): number {
  return ((alpha << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

/** WCAG relative luminance. */
export function luminance(rgb: Rgb): number {
  const [r, g, b] = rgb.map((c) => {
    const s = c / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Return black or white, the more readable of both on a background. */
export function inkOn(ground: Rgb): "#000000" | "#ffffff" {
  const l = luminance(ground);
  return (l + 0.05) / 0.05 > 1.05 / (l + 0.05) ? "#000000" : "#ffffff";
}

// Blue below, orange above: a pair that every common color-vision deficiency separates. The middle is gray, near the
// background but distinct from it, since a usual value must differ from a missing one.
const BELOW_TO_ABOVE: Record<"light" | "dark", readonly Rgb[]> = {
  light: [
    [8, 56, 120],
    [104, 160, 212],
    [214, 222, 227],
    [232, 152, 82],
    [134, 42, 0],
  ],
  dark: [
    [150, 202, 255],
    [52, 98, 150],
    [44, 60, 71],
    [152, 90, 28],
    [255, 200, 96],
  ],
};

/** Return the color of a deviation from -1 to 1: gray for usual values, one hue on each side. */
export function divergingColor(deviation: number, dark: boolean): Rgb {
  const stops = BELOW_TO_ABOVE[dark ? "dark" : "light"];
  // Curved, so that small deviations, which are noise, stay pale.
  const quiet = Math.sign(deviation) * Math.min(1, Math.abs(deviation)) ** 1.4;
  const at = ((quiet + 1) / 2) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(at));
  const a = stops[index] as Rgb;
  const b = stops[index + 1] as Rgb;
  const t = at - index;
  return [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
}

export function divergingGradient(dark: boolean): string {
  const stops = Array.from({ length: 9 }, (_, i) => css(divergingColor(i / 4 - 1, dark)));
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

export function scaleGradient(dark: boolean): string {
  const stops = Array.from({ length: 11 }, (_, i) => css(scaleColor(i / 10, dark)));
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

let probe: HTMLElement | undefined;

/** Return a token (without its dashes) as the browser resolves it now: canvases cannot read variables. */
export function token(name: string): string {
  if (!probe) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function tokenRgb(name: string): Rgb {
  const [r = 0, g = 0, b = 0] = (token(name).match(/[\d.]+/g) ?? []).map(Number);
  return [r, g, b];
}

// Okabe and Ito's set, moved in lightness to keep 3:1 against either ground.
const LINES_LIGHT = ["#0b5f7a", "#c2560c", "#88428a", "#1a63b8", "#8a6a00", "#a3324f", "#2f7d4f", "#54626d"];
const LINES_DARK = ["#7cc7db", "#ff9a5c", "#d693d3", "#6fb1f7", "#f0cf5a", "#f38ba3", "#7fcf9c", "#aab8c2"];
const DASHES: number[][] = [[], [6, 3], [2, 2], [8, 3, 2, 3]];

/** Return the style of line n: a color, and beyond the set of colors also a dash. */
export function lineStyle(n: number, dark: boolean): { stroke: string; dash: number[] } {
  const set = dark ? LINES_DARK : LINES_LIGHT;
  const stroke = set[n % set.length] as string;
  return { stroke, dash: DASHES[Math.floor(n / set.length) % DASHES.length] as number[] };
}
