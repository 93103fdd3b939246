import { expect, it } from "vitest";
import { bandGeometry } from "./criterion";

it("shows the band, a margin, and a value far outside", () => {
  const band = bandGeometry(90, 110, 40);
  expect(band).not.toBeNull();
  expect(band?.value).toBeGreaterThan(0);
  expect(band?.value).toBeLessThan(band?.from ?? 0);
  expect(band?.to).toBeLessThan(1);
});

it("extends to the edge on a side without a limit", () => {
  expect(bandGeometry(10, null, 12)).toMatchObject({ to: 1, openHigh: true, openLow: false });
  expect(bandGeometry(null, 10, 12)).toMatchObject({ from: 0, openLow: true });
});

it("draws nothing without a criterion, and a band without a value", () => {
  expect(bandGeometry(null, null, 3)).toBeNull();
  expect(bandGeometry(1, 2, null)).toMatchObject({ value: null });
});

it("accepts equal limits", () => {
  const band = bandGeometry(1, 1, 1);
  expect(Number.isFinite(band?.from)).toBe(true);
  expect(band?.from).toBe(band?.to);
});
