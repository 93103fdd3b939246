import { describe, expect, it } from "vitest";
import { detectorStates, headline, reasonOf, sortedDetectors } from "./detector-status-model";
import type { DetectorState, DetectorStatus } from "./types";

const detector = (name: string, state: DetectorState, reason = ""): DetectorStatus => ({
  name,
  state,
  reason,
  numbers: {},
});

describe("detector status", () => {
  it("puts abstaining and learning detectors first", () => {
    const list = [
      detector("b", "active"),
      detector("i", "idle"),
      detector("l", "learning"),
      detector("a", "abstaining"),
    ];
    expect(sortedDetectors(list).map((a) => a.name)).toEqual(["a", "l", "b", "i"]);
  });

  it("puts an unknown state first", () => {
    const odd = detector("x", "new" as DetectorState);
    expect(sortedDetectors([odd, detector("b", "active")]).map((a) => a.name)).toEqual(["x", "b"]);
    expect(reasonOf(odd)).toContain("not evidence of health");
  });

  it("never has the tone of health", () => {
    for (const look of Object.values(detectorStates)) expect(look.tone).not.toBe("healthy");
    expect(new Set(Object.values(detectorStates).map((look) => look.glyph)).size).toBe(4);
  });

  it("is counted in a headline", () => {
    const list = [
      detector("a", "active"),
      detector("b", "active"),
      detector("c", "abstaining"),
      detector("d", "idle"),
    ];
    expect(headline(list)).toBe("4 detectors: 2 active, 1 abstaining, 1 idle");
    expect(headline([detector("a", "learning")])).toBe("1 detector: 1 learning");
  });

  it("has a reason, also without a text of the detector", () => {
    expect(reasonOf(detector("a", "abstaining", "Too noisy."))).toBe("Too noisy.");
    expect(reasonOf(detector("a", "learning"))).toContain("not evidence of health");
  });
});
